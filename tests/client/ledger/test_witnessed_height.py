"""What others show of a silo's ledger: when it stops the silo, and when it must not."""

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from silomix_client.approval.approve import approve, review
from silomix_client.backup.backup import Since, collect, restore
from silomix_client.config.silo_config import SiloConfig, load
from silomix_client.errors import LedgerBehind
from silomix_client.ledger.ledger import Ledger
from silomix_client.ledger.witnessed_height import FILE, Witness
from silomix_client.process import run
from silomix_lab.consortium.create import Consortium
from silomix_proto import ledger_pb2
from silomix_protocol.keys import SigningKey
from silomix_protocol.rounds.heights import Height, sign_height
from support.put_back import StateCopy
from support.silos import NOW, approved_silo, asked, open_desk, open_ledger, study_file

Shown = ledger_pb2.LedgerHeight


@dataclass(slots=True)
class Silo:
    """An approved silo that answers rounds and hears what others show it."""

    made: Consortium
    config: SiloConfig

    def answer(self, *rounds: int, point: list[float] | None = None) -> Shown:
        """The height with which the last of these rounds went out."""
        with closing(open_ledger(self.config)) as ledger:
            for number in rounds:
                desk = open_desk(self.config, self.made.study, ledger)
                desk.answer(asked(self.made, number, point))
            return self.witness(ledger).height()

    def witness(self, ledger: Ledger) -> Witness:
        return Witness(ledger, self.config.name, self.key)

    @property
    def key(self) -> SigningKey:
        return SigningKey.load(self.config.folder / "sign.key")

    def hear(self, shown: Shown, by: str = "mix-1") -> None:
        """LedgerBehind if it stops the silo."""
        with closing(open_ledger(self.config)) as ledger:
            witness = self.witness(ledger)
            witness.hear(shown, by)
            witness.check()

    def check(self) -> None:
        """LedgerBehind if a silo that starts now stops."""
        with closing(open_ledger(self.config)) as ledger:
            self.witness(ledger).check()


@pytest.fixture
def silo(consortium: Consortium) -> Silo:
    return Silo(consortium, approved_silo(consortium))


# A ledger that was put back ----------------------------------------------------------------------


def check_heights(silo: Silo) -> None:
    """What this ledger ever was does not stop it; what it is not any more does."""
    before = silo.answer(1)
    earlier = StateCopy.of(silo.config)
    after = silo.answer(2, 3)
    for own in (before, after, silo.answer()):
        silo.hear(own)
    earlier.put_back()
    silo.hear(before)  # all that it has: nothing is missing
    with pytest.raises(LedgerBehind, match="of 4 entries, and this one has 2: it was put back"):
        silo.hear(after)


def test_a_ledger_that_was_put_back_is_stopped_by_a_later_height_and_by_no_earlier_one(
    silo: Silo,
) -> None:
    check_heights(silo)


def test_a_copy_that_answered_something_else_is_stopped_by_the_other_ones_height(
    silo: Silo,
) -> None:
    silo.answer(1)
    copy = StateCopy.of(silo.config)
    one = silo.answer(2)
    copy.put_back()
    other = silo.answer(2, point=[1.0, 0.0, 0.0])
    assert (one.entries, other.entries) == (3, 3)
    with pytest.raises(LedgerBehind, match="another entry 3 than this ledger has: a copy"):
        silo.hear(one)
    longer = silo.answer(3)
    assert longer.entries == 4
    with pytest.raises(LedgerBehind, match="another entry 3"):
        silo.hear(one)


def test_a_silo_that_forgot_its_approval_and_was_asked_again_is_stopped_before_it_answers(
    consortium: Consortium,
) -> None:
    """The second approval has a secret of its own, so the same question would get other noise."""
    before = StateCopy.of(load(consortium.silos[0]))
    silo = Silo(consortium, approved_silo(consortium))
    approved, answered = silo.answer(), silo.answer(1)
    for shown in (approved, answered):
        before.put_back()
        again = Silo(consortium, approved_silo(consortium))
        with pytest.raises(LedgerBehind, match="this silo's signature on"):
            again.hear(shown)


@pytest.mark.parametrize("mutant", ["not checked", ">= instead of >", "no forks"])
def test_a_height_that_is_judged_otherwise_is_caught(
    silo: Silo, monkeypatch: pytest.MonkeyPatch, mutant: str
) -> None:
    judged = Witness.contradiction

    def otherwise(self: Witness, shown: Height, by: str) -> str | None:
        restored_ms, entries, _ = self._ledger.height()
        if mutant == "not checked":
            return None
        if mutant == "no forks":
            return "behind" if shown.place > (restored_ms, entries) else None
        return judged(self, shown, by) or (
            "behind" if shown.place >= (restored_ms, entries) else None
        )

    monkeypatch.setattr(Witness, "contradiction", otherwise)
    claim = (
        test_a_copy_that_answered_something_else_is_stopped_by_the_other_ones_height
        if mutant == "no forks"
        else check_heights
    )
    with pytest.raises((LedgerBehind, AssertionError, pytest.fail.Exception)):
        claim(silo)


# What stops nobody -------------------------------------------------------------------------------


def forged(silo: Silo) -> Iterator[tuple[str, Shown]]:
    """What a mix can make of what it has, and what it cannot have."""
    genuine = silo.answer()
    for field, value in (("entries", 99), ("restored_ms", 10**13), ("mark", bytes(32))):
        changed = Shown.FromString(genuine.SerializeToString())
        setattr(changed, field, value)
        yield f"{field} changed", changed
    somebody = SigningKey.generate()
    yield "another key", sign_height("silo-1", (0, 99), bytes(32), somebody).to_wire()
    neighbour = SigningKey.load(silo.made.silos[1].parent / "sign.key")
    yield "another silo", sign_height("silo-2", (0, 99), bytes(32), neighbour).to_wire()
    yield "nothing", Shown()


def test_a_height_that_this_silo_did_not_sign_stops_it_not_and_is_not_kept(silo: Silo) -> None:
    silo.answer(1)
    for name, shown in forged(silo):
        silo.hear(shown)
        assert not (silo.config.state / FILE).exists(), name


# It lasts ----------------------------------------------------------------------------------------


@pytest.fixture
def behind(silo: Silo) -> Silo:
    """A silo that was put back, and was shown so."""
    earlier = StateCopy.of(silo.config)
    after = silo.answer(1)
    StateCopy.of(silo.config, "newest")
    earlier.put_back()
    with pytest.raises(LedgerBehind):
        silo.hear(after)
    return silo


def test_once_shown_it_starts_no_more_whoever_is_silent_then(behind: Silo) -> None:
    with pytest.raises(LedgerBehind, match="mix-1 has this silo's signature"):
        behind.check()
    with pytest.raises(LedgerBehind, match="put the newest state folder back, or restore"):
        run(behind.config)
    last = (behind.config.state / "audit.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["event"] == "silo_failed"


def test_nothing_is_approved_with_a_ledger_that_is_not_the_last(behind: Silo) -> None:
    content = study_file(behind.made).replace(b'name = "test"', b'name = "another"')
    with pytest.raises(LedgerBehind):
        approve(behind.config, review(behind.config, content), NOW)


def test_the_newest_folder_put_back_goes_on_by_itself(behind: Silo) -> None:
    kept = behind.config.state / FILE
    evidence = kept.read_bytes()
    newest = behind.config.folder.parent / f"{behind.config.folder.name}-newest"
    StateCopy(behind.config.state, newest).put_back()
    kept.write_bytes(evidence)
    behind.check()
    behind.answer(2)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"by": "x", "height": "zz"}', b"[]", b"\xff"])
def test_evidence_that_cannot_be_read_is_taken_for_evidence(silo: Silo, content: bytes) -> None:
    silo.answer(1)
    (silo.config.state / FILE).write_bytes(content)
    with pytest.raises(LedgerBehind, match=r"height\.json cannot be read"):
        silo.check()


# A proper restore --------------------------------------------------------------------------------


def saved(silo: Silo) -> bytes:
    return collect(silo.config, "silo.toml", NOW)[1]


def restored(silo: Silo, packed: bytes, folder: Path, hours: int = 0) -> Silo:
    again = restore(packed, folder, Since(complete=True), NOW + timedelta(hours=hours))
    return Silo(silo.made, load(again.config))


def test_a_restored_ledger_stands_above_all_that_it_forgot_and_the_old_one_below_it(
    silo: Silo, tmp_path: Path
) -> None:
    packed = saved(silo)
    lost = silo.answer(1, 2, 3, 4)
    again = restored(silo, packed, tmp_path / "new", 1)
    height = again.answer()
    assert height.entries < lost.entries
    for shown in (lost, height):
        again.hear(shown)
    with pytest.raises(LedgerBehind, match="restored from a backup later than this one"):
        silo.hear(height)


def test_restored_twice_from_one_backup_the_later_one_goes_on(silo: Silo, tmp_path: Path) -> None:
    packed = saved(silo)
    first = restored(silo, packed, tmp_path / "first", 1)
    second = restored(silo, packed, tmp_path / "second", 2)
    second.hear(first.answer())
    with pytest.raises(LedgerBehind):
        first.hear(second.answer())


def test_a_restore_counts_upwards_also_under_a_clock_that_stands_still(
    silo: Silo, tmp_path: Path
) -> None:
    once = restored(silo, saved(silo), tmp_path / "once")
    twice = restored(once, saved(once), tmp_path / "twice")
    assert twice.answer().restored_ms == once.answer().restored_ms + 1


def test_a_clock_that_was_ahead_at_one_restore_does_not_stop_a_silo_for_good(
    silo: Silo, tmp_path: Path
) -> None:
    """Restored once in 2040, then again from the older backup: others know the first."""
    packed = saved(silo)
    ahead = restored(silo, packed, tmp_path / "ahead", 14 * 365 * 24).answer()
    below = restored(silo, packed, tmp_path / "below", 1)
    with pytest.raises(LedgerBehind, match="restored from a backup later than this one"):
        below.hear(ahead)
    right = restored(below, saved(below), tmp_path / "right", 2)
    right.check()
    right.hear(ahead)
    assert right.answer().restored_ms == ahead.restored_ms + 1
    with pytest.raises(LedgerBehind):
        below.hear(right.answer())


def test_evidence_that_cannot_be_read_is_not_restored(silo: Silo, tmp_path: Path) -> None:
    (silo.config.state / FILE).write_text("{}")
    with pytest.raises(LedgerBehind, match="cannot be read"):
        silo.check()
    restored(silo, saved(silo), tmp_path / "new", 1).check()


def test_a_put_back_ledger_is_put_right_by_a_backup_of_itself(behind: Silo, tmp_path: Path) -> None:
    """The newest folder is lost: what was open counts as spent, and the silo goes on."""
    shown = Shown.FromString(
        bytes.fromhex(json.loads((behind.config.state / FILE).read_text())["height"])
    )
    again = restored(behind, saved(behind), tmp_path / "new", 1)
    again.hear(shown)
    with closing(open_ledger(again.config)) as ledger:
        assert ledger.total().epsilon() == pytest.approx(2.0)  # all of the study


# What a height tells -----------------------------------------------------------------------------


def test_a_height_tells_the_number_of_entries_and_nothing_that_could_be_tried_out(
    silo: Silo,
) -> None:
    height = silo.answer(1)
    with closing(open_ledger(silo.config)) as ledger:
        _, entries, head = ledger.height()
    assert height.entries == entries == 2
    assert head not in height.SerializeToString()
    assert height.mark != silo.answer(2).mark
