"""What others could change is not trusted: files, folders, and the folders above them."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from silomix_protocol.host import ownership
from silomix_protocol.host.ownership import OpenToOthers, check_state, read_own
from silomix_protocol.keys import UnusableKey, read_secret

SOMEBODY = 54321
Setting = Callable[[Path], None]


@pytest.fixture
def party(tmp_path: Path) -> Path:
    """A party's folder with a configuration and a state."""
    folder = tmp_path / "party"
    (folder / "state" / "snapshots").mkdir(parents=True)
    for path in (folder, folder / "state", folder / "state" / "snapshots"):
        path.chmod(0o755)
    for name in ("silo.toml", "state/ledger.sqlite"):
        (folder / name).write_bytes(b"content")
        (folder / name).chmod(0o644)
    return folder


@pytest.fixture
def give_away(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Make a file or folder somebody else's: by giving it away, or else by being another user."""

    def give(path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, SOMEBODY, -1)
        else:
            monkeypatch.setattr(ownership.os, "geteuid", lambda: SOMEBODY)

    return give


def looked_at(party: Path) -> None:
    assert read_own(party / "silo.toml") == b"content"
    check_state(party / "state")


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o444, 0o755])
def test_what_others_can_only_read_is_trusted(party: Path, mode: int) -> None:
    for name in ("silo.toml", "state/ledger.sqlite"):
        (party / name).chmod(mode)
    looked_at(party)


@pytest.mark.parametrize("mode", [0o664, 0o666, 0o646, 0o620])
@pytest.mark.parametrize("name", ["silo.toml", "state/ledger.sqlite"])
def test_a_file_that_others_can_write_is_not_trusted(party: Path, name: str, mode: int) -> None:
    (party / name).chmod(mode)
    with pytest.raises(OpenToOthers, match=rf"{name}: other users .* run: chmod go-w .*{name}$"):
        looked_at(party)


@pytest.mark.parametrize("mode", [0o777, 0o757])
@pytest.mark.parametrize("name", ["", "state", "state/snapshots"])
def test_a_folder_that_others_can_write_is_not_trusted(party: Path, name: str, mode: int) -> None:
    (party / name).chmod(mode)
    with pytest.raises(OpenToOthers, match=r"other users could change it .* run: chmod go-w"):
        looked_at(party)


@pytest.mark.parametrize(
    ("named", "members", "trusted"),
    [
        ("own", [], True),  # a volume of Kubernetes, or a user's private group
        ("own", ["colleague"], False),
        ("users", [], False),  # the first group of many
        (None, [], True),  # a container: ours, and nobody has a name for it
    ],
)
def test_a_folder_of_a_group_is_trusted_if_the_group_is_the_users_alone(
    party: Path,
    monkeypatch: pytest.MonkeyPatch,
    named: str | None,
    members: list[str],
    trusted: bool,
) -> None:
    party.chmod(0o2775)

    def group(number: int) -> object:
        if named is None:
            raise KeyError(number)
        name = ownership._name(os.geteuid()) if named == "own" else named
        return ownership.grp.struct_group((name, "x", number, members))

    monkeypatch.setattr(ownership.grp, "getgrgid", group)
    if trusted:
        looked_at(party)
        return
    with pytest.raises(OpenToOthers, match=r"party: other users could change it \(mode 2775\)"):
        looked_at(party)


@pytest.mark.parametrize(("mode", "trusted"), [(0o777, False), (0o1777, True), (0o755, True)])
def test_a_folder_above_may_be_open_only_with_the_sticky_bit(
    party: Path, mode: int, trusted: bool
) -> None:
    party.parent.chmod(mode)
    try:
        if trusted:
            looked_at(party)
            return
        with pytest.raises(OpenToOthers, match=r"move .*party elsewhere"):
            looked_at(party)
    finally:
        party.parent.chmod(0o700)


@pytest.mark.parametrize("name", ["silo.toml", "state", "state/ledger.sqlite", "state/snapshots"])
def test_what_belongs_to_somebody_else_is_not_trusted(
    party: Path, give_away: Setting, name: str
) -> None:
    give_away(party / name)
    with pytest.raises(OpenToOthers, match=r"belongs to .*, who could change it.* run: chown"):
        looked_at(party)


def test_a_key_that_belongs_to_somebody_else_is_not_used(party: Path, give_away: Setting) -> None:
    path = party / "sign.key"
    path.write_bytes(bytes(32))
    path.chmod(0o600)
    assert read_secret(path) == bytes(32)
    give_away(path)
    with pytest.raises(UnusableKey, match="belongs to"):
        read_secret(path)


def test_a_link_is_as_good_as_where_it_leads(party: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    (party / "silo.toml").rename(elsewhere / "silo.toml")
    (party / "silo.toml").symlink_to(elsewhere / "silo.toml")
    looked_at(party)
    elsewhere.chmod(0o777)
    with pytest.raises(OpenToOthers, match="elsewhere: other users"):
        looked_at(party)


def test_a_link_is_as_good_as_every_folder_that_it_leads_through(
    party: Path, tmp_path: Path
) -> None:
    between = tmp_path / "between"
    between.mkdir(mode=0o755)
    (between / "link").symlink_to(party / "real.toml")
    (party / "silo.toml").rename(party / "real.toml")
    (party / "silo.toml").symlink_to(between / "link")
    looked_at(party)
    between.chmod(0o777)
    with pytest.raises(OpenToOthers, match="between: other users"):
        looked_at(party)


def test_links_in_a_circle_are_no_file(party: Path) -> None:
    (party / "silo.toml").unlink()
    (party / "silo.toml").symlink_to("silo.toml")
    with pytest.raises(OSError, match="symbolic links"):
        read_own(party / "silo.toml")


@pytest.mark.parametrize("linked", [True, False])
def test_a_file_in_a_folder_of_everybodys_is_to_be_moved_and_the_folder_let_alone(
    party: Path, tmp_path: Path, linked: bool
) -> None:
    """Who took the advice to chmod /tmp would break the machine for all others."""
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    path, real = party / "silo.toml", shared / "real.toml"
    path.rename(real)
    path.symlink_to(real)
    named = f"{path} leads to {real}" if linked else str(real)
    with pytest.raises(OpenToOthers) as told:
        read_own(path if linked else real)
    assert str(told.value) == (
        f"{named}: other users could change it, since {shared} is everybody's (mode 1777); move "
        "the file into a folder that belongs to you"
    )


def test_a_party_that_keeps_nothing_yet_has_no_state_to_check(tmp_path: Path) -> None:
    check_state(tmp_path / "state")
