"""Opening a batch: the sum of what silos sent, and of nothing that somebody else put there."""

import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from silomix_core.discrete_gaussian import SIGMA_UNITS
from silomix_core.mechanism.report_format import encode_report
from silomix_core.reports.aggregation import Aggregation, Rule
from silomix_core.reports.length_bound import longest_reports
from silomix_protocol.keys import SealKey, write_secret
from silomix_protocol.rounds.tokens import TOKEN_BYTES, issuer
from silomix_server.mixes.batch_file import BatchFile
from silomix_server.mixes.opening import Opened, Opening
from silomix_server.mixes.token_desk import SEED, TokenDesk
from support.coordinators import peeled, report_of
from support.rounds import TOKEN_SEED, Parties, Round, make_parties, make_round

PARTIES = make_parties()


def asked(parties: Parties = PARTIES, number: int = 1) -> Round:
    return make_round(parties.study, parties.keys["server"], number)


def gated(round_: Round, payload: bytes) -> bytes:
    """What is left of a report with this payload after the last mix."""
    return peeled(round_, round_.seal_with_token(payload).sealed)


def reported(round_: Round, value: int) -> bytes:
    return gated(round_, round_.payload(report_of(round_.study, value)))


def opening_of(round_: Round, desk: TokenDesk | None) -> Opening:
    study = round_.study
    return Opening(round_.descriptor, round_.server, study.mechanism(), study.reception(), desk)


def opened(
    folder: Path, round_: Round, reports: Sequence[bytes], released: list[SealKey] | None = None
) -> Opened:
    if not (folder / SEED).exists():
        write_secret(folder / SEED, TOKEN_SEED)
    spool = BatchFile(folder, len(reports[0]))
    for report in reports:
        spool.append(report)
    study = round_.study
    desk = TokenDesk(study, folder) if study.batching.tokens else None
    try:
        opening = opening_of(round_, desk)
        opening.unwrap(spool)
        return opening.add_up(spool, round_.released if released is None else released)
    finally:
        spool.close()
        if desk is not None:
            desk.close()


def counts(result: Opened) -> dict[str, int]:
    named = ("accepted", "abstained", "unopenable", "injected", "repeated", "malformed", "too_long")
    return {name: getattr(result, name) for name in named if getattr(result, name)}


@pytest.mark.parametrize("gate", [True, False])
@pytest.mark.parametrize("tokens", [True, False])
def test_the_sum_is_that_of_the_silos_values(tmp_path: Path, gate: bool, tokens: bool) -> None:
    round_ = asked(make_parties(gate=gate, tokens=tokens))
    result = opened(tmp_path, round_, [reported(round_, value) for value in (1, 20, -300)])
    assert result.total.tolist() == [-279] * len(result.total)
    assert counts(result) == {"accepted": 3}
    assert result.dropped == 0


def test_a_report_without_a_token_of_this_round_is_dropped_and_counted(tmp_path: Path) -> None:
    """Somebody in the chain has every public key and made reports of its own."""
    round_, report = asked(), report_of(PARTIES.study, 1000)
    own = make_round(PARTIES.study, PARTIES.keys["server"])
    stranger = issuer(secrets.token_bytes(32), PARTIES.study.identity)
    forged = [
        secrets.token_bytes(TOKEN_BYTES) + report,
        bytes(TOKEN_BYTES) + report,
        asked(number=2).payload(report),  # a token of another round
        Round(own.study, round_.descriptor, own.server, own.mixes, stranger).payload(report),
    ]
    batch = [reported(round_, 1), *(gated(round_, each) for each in forged), reported(round_, 2)]
    result = opened(tmp_path, round_, batch)
    assert counts(result) == {"accepted": 2, "injected": 4}
    assert set(result.total.tolist()) == {3}


def test_all_reports_that_share_a_token_are_dropped(tmp_path: Path) -> None:
    """Whoever got hold of a silo's token cannot choose which report counts."""
    round_ = asked()
    token = round_.payload(b"")
    shared = [gated(round_, token + report_of(PARTIES.study, value)) for value in (500, 600, 700)]
    batch = [shared[0], reported(round_, 1), shared[1], reported(round_, 2), shared[2]]
    result = opened(tmp_path, round_, batch)
    assert counts(result) == {"accepted": 2, "repeated": 3}
    assert set(result.total.tolist()) == {3}


def test_a_token_that_came_with_nonsense_first_counts_for_nothing_after(tmp_path: Path) -> None:
    round_ = asked()
    token, report = round_.payload(b""), report_of(PARTIES.study, 9)
    batch = [gated(round_, token + bytes(len(report))), gated(round_, token + report)]
    result = opened(tmp_path, round_, [*batch, reported(round_, 4)])
    assert counts(result) == {"accepted": 1, "repeated": 2}
    assert set(result.total.tolist()) == {4}


def test_garbage_and_reports_of_other_rounds_are_dropped_whole(tmp_path: Path) -> None:
    round_, other = asked(), asked(number=2)
    good = reported(round_, 7)
    batch = [good, secrets.token_bytes(len(good)), reported(other, 1000)]
    assert counts(opened(tmp_path, round_, batch)) == {"accepted": 1, "unopenable": 2}


def test_one_wrong_release_key_opens_nothing(tmp_path: Path) -> None:
    round_ = asked()
    wrong = [round_.released[0], SealKey.generate()]
    result = opened(tmp_path, round_, [reported(round_, 7)], wrong)
    assert counts(result) == {"unopenable": 1}
    assert not np.any(result.total)


def longest(round_: Round) -> int:
    """In every coordinate, of a report that is as long as any silo's."""
    study = round_.study
    participants = [study.participant(silo) for silo in study.silos]
    (norm,) = longest_reports(study.mechanism(), participants)
    return int(norm / sqrt(study.task.dimension))


def test_a_report_longer_than_any_silos_is_dropped_whole_and_counted(tmp_path: Path) -> None:
    """Each of its values is one that the mechanism can have."""
    round_ = asked()
    most = longest(round_)
    batch = [reported(round_, value) for value in (7, most + 2, 8, -(most + 2))]
    result = opened(tmp_path, round_, batch)
    assert counts(result) == {"accepted": 2, "too_long": 2}
    assert result.dropped == 2
    assert set(result.total.tolist()) == {15}
    result = opened(tmp_path, round_, [reported(round_, value) for value in (7, most, 8)])
    assert counts(result) == {"accepted": 3}
    assert result.outlying == 1


def test_reports_become_one_by_the_studys_rule(tmp_path: Path) -> None:
    rule = Aggregation(Rule.TRIMMED_MEAN, 1)
    round_ = asked(replace(PARTIES, study=replace(PARTIES.study, named_aggregation=rule)))
    batch = [reported(round_, value) for value in (3, longest(round_), -50)]
    result = opened(tmp_path, round_, batch)
    assert set(result.total.tolist()) == {3}
    assert (result.accepted, result.summed) == (3, 1)


# Check-ins ---------------------------------------------------------------------------------------


def checking_in(name: str) -> Parties:
    return replace(PARTIES, study=replace(PARTIES.study, algorithm=name))


def abstaining(round_: Round) -> bytes:
    mechanism = round_.study.mechanism()
    values = np.zeros(mechanism.dimension, dtype=np.int64)
    return round_.payload(encode_report(values, mechanism, takes_part=False))


def test_who_abstains_is_counted_and_not_summed(tmp_path: Path) -> None:
    round_ = asked(checking_in("check-ins-averaged"))
    batch = [gated(round_, abstaining(round_)) for _ in range(3)]
    batch[1:1] = [reported(round_, 5), reported(round_, 20)]
    result = opened(tmp_path, round_, batch)
    assert counts(result) == {"accepted": 2, "abstained": 3}
    assert (result.dropped, result.summed) == (0, 2)
    assert set(result.total.tolist()) == {25}


def test_an_abstention_where_everybody_takes_part_is_no_report(tmp_path: Path) -> None:
    round_ = asked()
    batch = [gated(round_, abstaining(round_)), reported(round_, 5)]
    assert counts(opened(tmp_path, round_, batch)) == {"accepted": 1, "malformed": 1}


def test_abstentions_that_share_a_token_are_dropped_too(tmp_path: Path) -> None:
    round_ = asked(checking_in("check-ins-averaged"))
    shared = abstaining(round_)
    report = shared[:TOKEN_BYTES] + report_of(round_.study, 5)
    batch = [gated(round_, shared), gated(round_, report), reported(round_, 1)]
    result = opened(tmp_path, round_, batch)
    assert counts(result) == {"accepted": 1, "repeated": 2}
    assert set(result.total.tolist()) == {1}


@pytest.mark.slow
def test_of_the_reports_of_a_slot_one_is_used_each_as_often(tmp_path: Path) -> None:
    """Three reports, one of them dropped for its token, 300 openings: χ², false alarm 10⁻⁶."""
    round_ = asked(checking_in("check-ins-fixed"))
    twice = round_.payload(report_of(round_.study, 9))
    batch = [gated(round_, twice), *(reported(round_, value) for value in (1, 2, 3))]
    batch += [gated(round_, twice), gated(round_, abstaining(round_))]
    used: Counter[int] = Counter()
    for _ in range(300):
        result = opened(tmp_path, round_, batch)
        assert counts(result) == {"accepted": 3, "abstained": 1, "repeated": 2}
        assert result.summed == 1
        (value,) = set(result.total.tolist())
        used[value] += 1
    assert set(used) == {1, 2, 3}
    assert stats.chisquare(list(used.values())).pvalue > 1e-6


def test_a_slot_without_a_report_is_noise_alone(tmp_path: Path) -> None:
    """Fresh noise of the mechanism's size: within 6 standard deviations, and never twice."""
    round_ = asked(checking_in("check-ins-fixed"))
    batch = [gated(round_, abstaining(round_)) for _ in range(3)]
    dummies = [opened(tmp_path, round_, batch) for _ in range(100)]
    assert all(counts(each) == {"abstained": 3} and each.summed == 1 for each in dummies)
    values = np.concatenate([each.total for each in dummies]) / SIGMA_UNITS
    assert len(set(values.tolist())) > 0.99 * len(values)
    assert abs(values).max() < 6
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], len(values))  # false alarm 10⁻⁶
    assert low < (values**2).sum() < high


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(["silo", "injected", "shared", "garbage"]), min_size=1, max_size=8))
def test_whatever_is_mixed_in_the_sum_is_that_of_the_silos(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[str]
) -> None:
    round_, report = asked(), report_of(PARTIES.study, 5)
    token, length = round_.payload(b""), len(reported(round_, 5))
    make = {
        "silo": lambda: reported(round_, 5),
        "injected": lambda: gated(round_, bytes(TOKEN_BYTES) + report),
        "shared": lambda: gated(round_, token + report),
        "garbage": lambda: secrets.token_bytes(length),
    }
    result = opened(tmp_path_factory.mktemp("state"), round_, [make[kind]() for kind in kinds])
    accepted = kinds.count("silo") + (kinds.count("shared") == 1)
    assert (result.accepted, result.dropped) == (accepted, len(kinds) - accepted)
    assert set(result.total.tolist()) == {5 * accepted}


def test_a_batch_that_is_too_large_for_memory_gives_the_same_sum_and_stays_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that it waits in never holds what only our key hides; a study without a gate."""
    monkeypatch.setattr("silomix_server.mixes.batch_file._IN_MEMORY", 0)
    for gate in (True, False):
        round_ = asked(make_parties(gate=gate))
        token = round_.payload(b"")
        shared = [gated(round_, token + report_of(round_.study, value)) for value in (50, 60)]
        batch = [shared[0], reported(round_, 7), reported(round_, 8), shared[1]]
        folder = tmp_path / str(gate)
        folder.mkdir()
        spool = BatchFile(folder, len(batch[0]))
        for report in batch:
            spool.append(report)
        write_secret(folder / SEED, TOKEN_SEED)
        desk = TokenDesk(round_.study, folder)
        opening = opening_of(round_, desk)
        opening.unwrap(spool)
        assert list(spool) == batch
        assert set(opening.add_up(spool, round_.released).total.tolist()) == {15}
        assert list(spool) == batch
        spool.close()
        desk.close()


def test_a_large_batch_waits_in_a_file_that_has_no_name(tmp_path: Path) -> None:
    report = secrets.token_bytes(2**20)
    spool = BatchFile(tmp_path, len(report))
    for number in range(6):
        spool.append(bytes([number]) + report[1:])
    assert list(tmp_path.iterdir()) == []
    assert [each[0] for each in spool] == list(range(6))
    assert spool[3][1:] == report[1:]
    with pytest.raises(ValueError, match="1048576 bytes"):
        spool.append(report[1:])
    with pytest.raises(IndexError):
        spool[6]
    spool.close()
