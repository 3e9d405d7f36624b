"""`silomix authority …`, `silomix join`, `silomix renew`: membership of a consortium."""

from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from silomix_protocol.host.failure import Failure, failures
from silomix_protocol.host.state_folder import state_of
from silomix_protocol.host.terminal import show

from silomix.commands.options import Config
from silomix.text.literal_help import Commands

if TYPE_CHECKING:
    from silomix_protocol.connections.route import Route
    from silomix_protocol.enrolment.membership import PartyKind

    from silomix.text.first_config import WayOut

authority = Commands(
    help="The consortium's authority: invites parties, certifies their keys, revokes them."
)

AuthorityFile = Annotated[Path, typer.Argument(help="The authority's authority.toml.")]
PartyName = Annotated[str, typer.Argument(help="The party's name in studies.")]


@authority.command("init")
def authority_init(
    folder: Annotated[Path, typer.Argument(help="A new or empty folder.")],
    address: Annotated[str, typer.Option(help="host:port where parties will reach it.")],
    listen: Annotated[
        str | None, typer.Option(help="host:port to listen on (else all addresses, same port).")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the consortium.")] = "silomix consortium",
    certificate_days: Annotated[
        float, typer.Option(help="Life of a certificate; renewed after two thirds of it.")
    ] = 14.0,
    invitation_hours: Annotated[
        float, typer.Option(help="How long an invitation can be used.")
    ] = 72.0,
    list_hours: Annotated[
        float, typer.Option(help="How long parties trust a revocation list.")
    ] = 72.0,
) -> None:
    """Make a new authority: its key, its certificate and authority.toml, which can be edited."""
    import tomli_w
    from silomix_authority.config import FILE, AuthorityConfig, parse
    from silomix_authority.process import create
    from silomix_protocol.enrolment.membership import authority_fingerprint
    from silomix_protocol.host.operator_files import named

    with failures():
        config = AuthorityConfig(
            folder,
            address,
            listen or f"0.0.0.0:{address.rpartition(':')[2]}",
            timedelta(days=certificate_days),
            timedelta(hours=invitation_hours),
            timedelta(hours=list_hours),
        )
        with named(folder / FILE, Failure):
            parse(tomli_w.dumps(config.table()), folder)
        create(config, name, datetime.now(UTC))
        show(f"made {folder / FILE}; ca.key beside it signs every certificate: guard it")
        fingerprint = authority_fingerprint((folder / "ca.crt").read_bytes())
        show(f"consortium       {fingerprint.hex()}")
        show("                 tell it to every party by phone or on paper: `join` shows it again")
        show(f"\nrun it:          silomix authority run {folder / FILE}")
        show(f"invite a party:  silomix authority invite {folder / FILE} NAME --kind silo")


@authority.command("run")
def authority_run(config: AuthorityFile) -> None:
    """Serve parties that join, renew or ask for the revocation list (until Ctrl-C or SIGTERM)."""
    with failures():
        from silomix_authority.config import load
        from silomix_authority.process import run

        run(load(config))


@authority.command("invite")
def authority_invite(
    config: AuthorityFile,
    name: PartyName,
    kind: Annotated[str, typer.Option(help="silo, mix or server.")],
    address: Annotated[
        str | None, typer.Option(help="Of a mix: host:port where others reach it.")
    ] = None,
    fleet_address: Annotated[
        str | None, typer.Option(help="Of a server: host:port of Flower's Fleet API.")
    ] = None,
    channel_address: Annotated[
        str | None, typer.Option(help="Of a server: host:port of the round channel.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The invitation's file (else NAME.invitation).")
    ] = None,
    hours: Annotated[
        float | None, typer.Option(min=0.0, help="How long it can be used (else as configured).")
    ] = None,
) -> None:
    """Invite a party: a file that lets it join once.  Hand it over so that nobody else reads it.

    An open invitation of the same name becomes useless.
    """
    from silomix_authority.config import load
    from silomix_authority.desk import Desk
    from silomix_authority.register import Register
    from silomix_protocol.certificates.certificates import shown
    from silomix_protocol.enrolment.membership import Member, PartyKind

    with failures():
        if kind not in {each.value for each in PartyKind}:
            raise Failure(f"--kind {kind}: use silo, mix or server")
        given = {
            "address": address,
            "fleet_address": fleet_address,
            "channel_address": channel_address,
        }
        member = Member(name, PartyKind(kind), _addresses(PartyKind(kind).addresses, given))
        path = out or Path(f"{name}.invitation")
        if path.exists():
            raise Failure(f"{path}: there is already a file of this name")
        settings, life = load(config), None if hours is None else timedelta(hours=hours)
        with closing(Register(settings.state)) as register:
            invitation = Desk(settings, register).invite(member, datetime.now(UTC), life)
        invitation.save(path)
        show(f"invited          {name} ({kind}), until {shown(invitation.expires)}")
        show(f"its operator     silomix join {path} --into FOLDER")


def _addresses(wanted: tuple[str, ...], given: dict[str, str | None]) -> tuple[str, ...]:
    for key, value in given.items():
        option = "--" + key.replace("_", "-")
        if key in wanted and value is None:
            raise Failure(f"{option} is needed: others dial this party")
        if key not in wanted and value is not None:
            raise Failure(f"{option}: nobody dials this kind of party there")
    return tuple(value for key in wanted if (value := given[key]) is not None)


@authority.command("list")
def authority_list(config: AuthorityFile) -> None:
    """The members, how long their certificates last, and the invitations that are open."""
    from silomix_authority.config import load
    from silomix_authority.register import Register
    from silomix_protocol.certificates.certificates import shown
    from silomix_protocol.keys import fingerprint

    with failures(), closing(Register(load(config).state)) as register:
        now = datetime.now(UTC)
        for party in register.parties():
            name, kind = party.member.name, party.member.kind.value
            issued = register.latest_certificate(name)
            if party.revoked is not None:
                state = f"revoked {shown(party.revoked)}"
            elif issued is None or issued.expires <= now:
                state = "certificate expired"
            else:
                state = f"certificate until {shown(issued.expires)}"
            show(f"{kind:<7} {name:<20} {state:<42} key {fingerprint(party.sign_key).hex()}")
        for invited in register.invitations():
            state = "expired" if invited.expires <= now else f"until {shown(invited.expires)}"
            kind = invited.member.kind.value
            show(f"{kind:<7} {invited.member.name:<20} invited, {state}")


@authority.command("revoke")
def authority_revoke(
    config: AuthorityFile,
    name: PartyName,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask (for scripts).")] = False,
) -> None:
    """End a party's membership: server and mixes refuse its certificates within a minute or so.

    Open invitations of this name become useless too.  To let a party come back that lost its
    keys, revoke it, then invite it again.
    """
    from silomix_authority.config import load
    from silomix_authority.desk import Desk
    from silomix_authority.register import Register

    with failures():
        settings = load(config)
        if not yes and not typer.confirm(f"Revoke {name}?"):
            raise Failure("not revoked; nothing was written")
        with closing(Register(settings.state)) as register:
            Desk(settings, register).revoke(name, datetime.now(UTC))
        show(f"revoked          {name}")


@authority.command("roster")
def authority_roster(
    config: AuthorityFile,
    out: Annotated[
        Path, typer.Option(help="The roster's file; an earlier one is replaced.")
    ] = Path("roster.toml"),
) -> None:
    """Write the members' names, addresses and public keys, for `silomix study assemble`."""
    from silomix_authority.config import load
    from silomix_authority.register import Register
    from silomix_protocol.enrolment.membership import authority_fingerprint
    from silomix_protocol.enrolment.roster import Roster, RosterEntry
    from silomix_protocol.host.durable import write_durably

    with failures():
        settings = load(config)
        with closing(Register(settings.state)) as register:
            entries = [
                RosterEntry(party.member, party.sign_key, party.node_key, party.statement)
                for party in register.parties()
                if party.revoked is None
            ]
        consortium = authority_fingerprint(settings.authority().pem)
        roster = Roster(consortium, tuple(entries))
        write_durably(out, roster.content(), mode=0o644)
        show(f"wrote {out}: {len(entries)} parties")


def join(
    invitation: Annotated[Path, typer.Argument(help="The file that the authority made.")],
    into: Annotated[Path, typer.Option(help="This party's folder, new or empty.")],
    proxy: Annotated[
        str | None, typer.Option(help="A silo's way out: http://HOST:PORT; goes into silo.toml.")
    ] = None,
    proxy_login: Annotated[
        Path | None,
        typer.Option(help="A file that only you can read, with user:password for the proxy."),
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(help="If the proxy looks into TLS: its authority, in PEM.")
    ] = None,
) -> None:
    """Become a member of a consortium: make this party's keys, get its first certificate.

    The keys are made here and never leave the folder.  If it breaks off, do it again with the same
    folder.  A proxy is used here and written, with copies of its files, into the silo.toml that is
    made.
    """
    import asyncio

    from silomix_client.network.outbound import network_of
    from silomix_protocol.certificates.certificates import shown
    from silomix_protocol.connections.route import ignore_environment
    from silomix_protocol.enrolment.enrolment import join as join_consortium
    from silomix_protocol.enrolment.membership import Invitation, authority_fingerprint
    from silomix_protocol.keys import fingerprint

    from silomix.text.first_config import write_skeleton

    with failures():
        invited = Invitation.load(invitation)
        member = invited.member
        route, way_out = _way_out(member.kind, proxy, proxy_login, ca)
        ignore_environment()
        keys, life = asyncio.run(join_consortium(invited, into, route))
        config = write_skeleton(member, into, way_out)
        show(f"joined           as {member.name} ({member.kind.value}), in {into}")
        show(f"certificate      until {shown(life.expires)}, renewed while it runs")
        show(f"consortium       {authority_fingerprint(invited.authority).hex()}")
        show("                 compare it with what the authority's operator says by phone")
        show(f"your key         {fingerprint(keys.sign.public).hex()}")
        show("\nTell the others your key's fingerprint by another way than through the authority:")
        show("with it they can see that a study lists your key and nobody else's.")
        show(f"next             look at {config} and complete it; {invitation} is used up")
        if way_out is not None and network_of(config).web != route:
            show(f"                 {config} was there before and names another way out")


def _way_out(
    kind: "PartyKind", proxy: str | None, login: Path | None, ca: Path | None
) -> "tuple[Route, WayOut | None]":
    """The route that the options name, and what silo.toml is to say about it."""
    from silomix_client.network.outbound import read_network
    from silomix_core.toml_table import TomlTable
    from silomix_protocol.connections.route import DIRECT
    from silomix_protocol.enrolment.membership import PartyKind
    from silomix_protocol.keys import read_secret

    from silomix.text.first_config import WayOut

    given = {"proxy": proxy, "proxy_login": login, "ca": ca}
    table = {key: str(value) for key, value in given.items() if value is not None}
    if not table:
        return DIRECT, None
    if kind is not PartyKind.SILO:
        raise Failure(f"--{next(iter(table)).replace('_', '-')}: a {kind.value} dials directly")
    route = read_network(TomlTable(table, "network"), Path()).web
    way_out = WayOut(
        proxy,
        None if login is None else read_secret(login),
        None if ca is None else ca.read_bytes(),
    )
    return route, way_out


def renew(config: Config) -> None:
    """Get this party's next certificate now; a running party does so by itself.

    CONFIG is its silo.toml, mix.toml or server.toml.  Works also after the certificate expired, as
    long as the authority did not revoke the party; a process that runs uses the new one at once.
    """
    import asyncio

    from silomix_client.network.outbound import network_of
    from silomix_protocol.certificates.certificates import shown
    from silomix_protocol.connections.route import DIRECT, ignore_environment
    from silomix_protocol.enrolment.enrolment import Enrolment
    from silomix_protocol.enrolment.enrolment import renew as renew_certificate
    from silomix_protocol.enrolment.membership import PartyKind
    from silomix_protocol.host.operator_files import named
    from silomix_protocol.host.ownership import check_state

    with failures():
        if not config.is_file():
            raise Failure(f"{config}: no such file")
        with named(config, Failure):
            check_state(state_of(config.parent))
        enrolment = Enrolment.load(config.parent)
        is_silo = enrolment.member.kind is PartyKind.SILO
        route = network_of(config).web if is_silo else DIRECT
        ignore_environment()
        life = asyncio.run(renew_certificate(enrolment, route))
        show(f"renewed          until {shown(life.expires)}")


def assemble(
    outline: Annotated[Path, typer.Argument(help="A study file without keys and addresses.")],
    roster: Annotated[Path, typer.Argument(help="What `silomix authority roster` wrote.")],
    out: Annotated[Path, typer.Option(help="The study file, new.")] = Path("study.toml"),
) -> None:
    """Complete a study's outline with the parties' keys and addresses from the roster.

    OUTLINE is a study file whose [server], [[mixes]] and [[silos]] give names (and what is decided
    for the study: a silo's records, weight, epsilon); keys and addresses come from ROSTER.
    """
    import tomllib

    import tomli_w
    from silomix_core.study.reader import parse_study
    from silomix_protocol.enrolment.roster import Roster, completed
    from silomix_protocol.host.durable import write_durably
    from silomix_protocol.host.operator_files import named
    from silomix_protocol.keys import check_public_keys, fingerprint

    with failures():
        if out.exists():
            raise Failure(f"{out}: there is already a file of this name")
        with named(roster, Failure):
            parties = Roster.parse(roster.read_bytes())
        with named(outline, Failure):
            table = tomllib.loads(outline.read_text(encoding="utf-8"))
            content = tomli_w.dumps(completed(table, parties)).encode("utf-8")
            study = parse_study(content)
            check_public_keys(study)
            study.mechanism()  # a study that no noise can serve is not written
        write_durably(out, content, mode=0o644)
        show(f"wrote {out}, study {study.identity.hex()}")
        show(f"consortium       {parties.consortium.hex()}")
        keys = {study.server.name: study.server.sign_key}
        keys |= {mix.name: mix.sign_key for mix in study.mixes}
        keys |= {silo.name: silo.sign_key for silo in study.silos}
        for name, key in keys.items():
            show(f"{name:<16} {fingerprint(key).hex()}")
        show("\nCompare these with what each party says of its own key, then send the file to all.")
