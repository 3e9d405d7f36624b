"""Rounds without a network: a small study with everybody's keys, attempts of its rounds, and what
honest mixes do to a batch.  Signing keys come from names, so the same call gives the same study.
"""

import random
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count

from cryptography.hazmat.primitives.asymmetric import ec
from silomix_core.study.reader import parse_study
from silomix_core.study.study import Study
from silomix_proto import channel_pb2, mix_pb2, round_pb2
from silomix_protocol.keys import SealKey, SigningKey, node_public_bytes
from silomix_protocol.rounds import onion, round_keys, statements
from silomix_protocol.rounds.descriptor import AttemptKeys, Descriptor, RoundDigest, issue
from silomix_protocol.rounds.tokens import TOKEN_BYTES, Issuer, blind, issuer

from support.studies import Tree, study_bytes, study_tree

TOKEN_SEED = sha256(b"token seed").digest()


# The study ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Parties:
    """A study, its file, and the signing keys of all its parties, by name."""

    study: Study
    content: bytes = field(repr=False)
    keys: dict[str, SigningKey]

    @property
    def roster(self) -> tuple[str, ...]:
        return tuple(silo.name for silo in self.study.silos)

    def mix_key(self, hop: int) -> SigningKey:
        return self.keys[self.study.mixes[hop].name]


def make_parties(
    *,
    silos: int = 4,
    mixes: int = 2,
    rounds: int = 5,
    minimum: int = 3,
    deadline_s: float = 5.0,
    gate: bool = True,
    tokens: bool = True,
    name: str = "small",
    participants: int | None = None,
) -> Parties:
    """Parties silo-0, silo-1, …, mix-1, mix-2, … and server; another `name` has other keys."""
    tree = study_tree(silos)
    tree["name"] = name
    tree["algorithm"]["rounds"] = rounds
    if participants is not None:
        tree["algorithm"] |= {"participants": participants, "draw": "turns"}
    tree["batch"] |= {"minimum": minimum, "deadline_s": deadline_s, "gate": gate, "tokens": tokens}
    tree["mixes"] = [
        {"name": f"mix-{index + 1}", "address": f"127.0.0.1:{7001 + index}"}
        for index in range(mixes)
    ]
    keys = {}
    for party in [*tree["silos"], *tree["mixes"], tree["server"]]:
        keys[party["name"]] = _enrol(party, name)
    content = study_bytes(tree)
    return Parties(parse_study(content), content, keys)


def parties_asking(asked: int, *, silos: int, mixes: int = 2, minimum: int = 3) -> Parties:
    """Parties whose first round asks the first so many silos: of the first name that has it so."""
    for number in count():
        parties = make_parties(
            silos=silos,
            mixes=mixes,
            minimum=minimum,
            name=f"asking-{number}",
            participants=asked,
        )
        if parties.study.asked(1) == parties.roster[:asked]:
            break
    return parties


def _enrol(party: Tree, study_name: str) -> SigningKey:
    seed = sha256(f"{study_name}/{party['name']}".encode()).digest()
    key = signing_key(seed)
    party["sign_key"] = b64encode(key.public).decode()
    if "node_key" in party:
        node = ec.derive_private_key(int.from_bytes(seed, "big"), ec.SECP384R1())
        party["node_key"] = b64encode(node_public_bytes(node)).decode()
    return key


def signing_key(seed: bytes) -> SigningKey:
    return SigningKey.from_raw(seed)


# An attempt of a round ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MixSecrets:
    """What one mix keeps for one attempt; no release key in a study without a gate."""

    seal: SealKey
    release: SealKey | None

    @property
    def public(self) -> round_pb2.RoundKeys:
        release = self.release.public if self.release else b""
        return round_pb2.RoundKeys(seal=self.seal.public, release=release)


@dataclass(frozen=True, slots=True)
class Round:
    """One attempt of a round, with the secrets of the server and of every mix."""

    study: Study
    descriptor: Descriptor
    server: SealKey = field(repr=False)
    mixes: tuple[MixSecrets, ...] = field(repr=False)
    issuer: Issuer | None = field(repr=False)

    @property
    def digest(self) -> RoundDigest:
        return self.descriptor.digest

    @property
    def mix_keys(self) -> list[round_pb2.RoundKeys]:
        return [mix.public for mix in self.mixes]

    @property
    def released(self) -> list[SealKey]:
        return [mix.release for mix in self.mixes if mix.release]

    def payload(self, report: bytes) -> bytes:
        """The report behind a fresh token, if the study has tokens."""
        if self.issuer is None:
            return report
        number, token = self.descriptor.round, blind()
        evaluated = self.issuer.evaluate(number, token.blinded)
        return token.finish(evaluated, self.issuer.public_key(number)).to_bytes() + report

    def payload_bytes(self, report_bytes: int) -> int:
        return report_bytes + (TOKEN_BYTES if self.issuer else 0)

    def seal(self, payload: bytes) -> onion.Onion:
        """All of the payload behind the gates: nothing here reads its token."""
        return onion.seal(payload, self.server.public, self.mix_keys, self.digest)

    def seal_with_token(self, payload: bytes) -> onion.Onion:
        """As a silo does: the token in front of the gates."""
        keys, ungated = (self.server.public, self.mix_keys), self.payload_bytes(0)
        return onion.seal(payload, *keys, self.digest, ungated=ungated)

    def open(self, gated: bytes) -> bytes:
        return open_gated(gated, self.released, self.server, self.digest)

    def open_with_token(self, gated: bytes) -> bytes:
        keys, ungated = (self.released, self.server), self.payload_bytes(0)
        return open_gated(gated, *keys, self.digest, ungated)


def open_gated(
    gated: bytes,
    released: Sequence[SealKey],
    server_key: SealKey,
    digest: RoundDigest,
    ungated: int = 0,
) -> bytes:
    """The payload of a gated report, of which so many bytes were not behind the gates."""
    content = onion.open_at_server(gated, server_key, digest)
    return content[:ungated] + onion.open_gates(content[ungated:], released, digest)


def make_round(
    study: Study,
    server_sign_key: SigningKey,
    number: int = 1,
    attempt: int = 1,
    *,
    query: bytes = b"query",
    make_key: Callable[[], SealKey] = SealKey.generate,
) -> Round:
    """An attempt with fresh keys."""
    gate, tokens = study.batching.gate, study.batching.tokens
    mixes = tuple(MixSecrets(make_key(), make_key() if gate else None) for _ in study.mixes)
    server = make_key()
    token_issuer = issuer(TOKEN_SEED, study.identity) if tokens else None
    keys = AttemptKeys(
        server=sha256(server.public).digest(),
        mixes=tuple(round_keys.fingerprint(mix.public) for mix in mixes),
        token=token_issuer.public_key(number) if token_issuer else b"",
    )
    descriptor = issue(study, number, attempt, query, keys, server_sign_key)
    return Round(study, descriptor, server, mixes, token_issuer)


def fixed_keys(name: str) -> Callable[[], SealKey]:
    """Makes sealing keys, one after the other, that are the same in every run."""
    places = count()

    def make_key() -> SealKey:
        place = next(places)
        thirds = (sha256(f"{name}/{place}/{third}".encode()).digest() for third in range(3))
        return SealKey.from_raw(b"".join(thirds))

    return make_key


def key_lists(parties: Parties, rounds: Sequence[Round]) -> list[round_pb2.KeyList]:
    """What every mix states about its keys for these rounds, which follow one another."""
    first = rounds[0].descriptor
    return [
        round_keys.sign_list(
            parties.study,
            first.attempt,
            first.round,
            [each.mix_keys[hop] for each in rounds],
            parties.mix_key(hop),
        )
        for hop in range(len(parties.study.mixes))
    ]


# What honest mixes do ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mixed:
    """A batch behind the last mix: everybody's statement, and the gated reports in their order."""

    chain: list[round_pb2.HopStatement]
    gated: list[bytes]
    committed: channel_pb2.RoundCommitted


def mixed(
    parties: Parties,
    round_: Round,
    onions: Sequence[bytes],
    *,
    hops: int | None = None,
    seed: int = 0,
) -> Mixed:
    """What the first `hops` mixes (all of them unless given) make of these onions."""
    rng, reports = random.Random(seed), list(onions)
    chain: list[round_pb2.HopStatement] = []
    for hop, mix in enumerate(round_.mixes[:hops]):
        came = statements.input_of(sha256(each).digest() for each in reports)
        if chain:
            came = sha256(chain[-1].output).digest()
        reports = [onion.open_layer(each, mix.seal, hop, round_.digest) for each in reports]
        rng.shuffle(reports)
        chain.append(hop_statement(parties, round_.digest, hop, came, joined(reports)))
    return Mixed(chain, reports, committed_list(parties, round_.digest, chain[-1].output))


def committed_list(
    parties: Parties, digest: RoundDigest, listed: bytes
) -> channel_pb2.RoundCommitted:
    """The list that every mix stands by."""
    list_hash = sha256(listed).digest()
    signatures = [
        statements.sign_commitment(digest, list_hash, parties.mix_key(hop))
        for hop in range(len(parties.study.mixes))
    ]
    return channel_pb2.RoundCommitted(digest=digest, list=listed, signatures=signatures)


def hop_statement(
    parties: Parties,
    digest: RoundDigest,
    hop: int,
    came: bytes,
    output: bytes,
    *,
    dropped: int = 0,
    aborted: str = "",
) -> round_pb2.HopStatement:
    """The signed statement of the mix at `hop` that forwarded the digests in `output`."""
    forwarded = len(output) // statements.DIGEST_BYTES
    statement = round_pb2.HopStatement(
        hop=hop,
        received=forwarded + dropped,
        forwarded=forwarded,
        dropped=dropped,
        input=came,
        output=output,
        aborted=aborted,
    )
    return statements.sign_hop(digest, statement, parties.mix_key(hop))


def joined(reports: Sequence[bytes]) -> bytes:
    """The list of these reports: their digests, back to back."""
    return b"".join(sha256(each).digest() for each in reports)


def receipt(parties: Parties, round_: Round, sealed: bytes, place: int = 0) -> mix_pb2.Receipt:
    """What the first mix answers to this onion of the silo at `place`."""
    report = sha256(sealed).digest()
    return statements.sign_receipt(round_.digest, place, report, parties.mix_key(0))
