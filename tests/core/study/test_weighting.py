"""What silos count by: whose record moves the result how far, and what that costs everybody."""

from base64 import b64encode
from math import sqrt
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from silomix_core.accounting.events import PrivacyTarget
from silomix_core.mechanism.mechanism import Mechanism, Minibatch, Participant, Phase
from silomix_core.study.costliest import costliest
from silomix_core.study.derive import participants_of, weighting_of
from silomix_core.study.study import InvalidStudy
from silomix_core.study.weighting import Weighting, weights
from support.specifications import specification
from support.studies import parse, study_tree

TARGET, STRICT = PrivacyTarget(1.0, 1e-6), PrivacyTarget(0.1, 1e-6)
UNEQUAL = [300] + [10_000] * 9


def made(weighting: Weighting, records: list[int]) -> tuple[Mechanism, list[Participant]]:
    named = specification(target=TARGET, named_weighting=weighting)
    silos = participants_of(named, records)
    return Mechanism.calibrate(silos, clip=1.0, dimension=20, phases=[Phase(60)]), silos


@settings(deadline=None, max_examples=25)
@given(records=st.lists(st.integers(20, 10**6), min_size=1, max_size=30))
def test_by_records_every_silos_promise_asks_for_the_same_noise(records: list[int]) -> None:
    mechanism, silos = made(Weighting.RECORDS, records)
    assert sum(each.weight for each in silos) == pytest.approx(len(silos))
    moved = [mechanism.sensitivity_units(each) for each in silos]
    assert moved == pytest.approx([moved[0]] * len(silos), rel=1e-9)
    spent = [mechanism.epsilon(each) for each in set(silos)]
    assert spent == pytest.approx([TARGET.epsilon] * len(spent), rel=1e-6)
    assert max(spent) <= TARGET.epsilon


def test_a_small_silo_no_longer_decides_the_noise_of_all() -> None:
    """1 × 300 and 9 × 10,000, L = 1, d = 20, 60 rounds: the noise of the mean report."""
    noise = {}
    for weighting in (Weighting.RECORDS, Weighting.EQUAL):
        mechanism, silos = made(weighting, UNEQUAL)
        noise[weighting] = mechanism.sigma() / sqrt(len(silos))
    assert noise[Weighting.RECORDS] == pytest.approx(0.0023, rel=0.05)
    assert noise[Weighting.EQUAL] == pytest.approx(0.0690, rel=0.05)
    ratio = noise[Weighting.EQUAL] / noise[Weighting.RECORDS]
    assert ratio == pytest.approx(sum(UNEQUAL) / 10 / 300, rel=1e-3)


def test_silos_that_draw_so_many_records_each_count_alike_unless_somebody_says_otherwise() -> None:
    assert weighting_of(specification("shuffled-mb-sgd")) is Weighting.EQUAL
    assert weighting_of(specification("auto")) is Weighting.RECORDS
    assert weighting_of(specification(minibatch=Minibatch())) is Weighting.RECORDS
    named = specification("shuffled-mb-sgd", named_weighting=Weighting.RECORDS)
    assert weighting_of(named) is Weighting.RECORDS


def test_weights_of_a_study_file_are_read_as_it_says() -> None:
    def of_silos(tree: dict[str, Any]) -> list[float]:
        study = parse(tree)
        return [study.participant(silo).weight for silo in study.silos]

    tree = study_tree()
    for silo, records in zip(tree["silos"], (10, 20, 60), strict=True):
        silo["records"] = records
    assert of_silos(tree) == [1.0, 1.0, 1.0]  # a file that says nothing means what it always did
    tree["algorithm"]["weights"] = "records"
    assert of_silos(tree) == pytest.approx([1 / 3, 2 / 3, 2.0])
    tree["algorithm"]["weights"] = "equal"
    assert of_silos(tree) == [1.0, 1.0, 1.0]
    tree["silos"][1]["weight"] = 4.0
    for said in ("equal", "records"):
        tree["algorithm"]["weights"] = said
        with pytest.raises(InvalidStudy, match="weight goes with"):
            parse(tree)
    tree["algorithm"]["weights"] = "named"
    assert of_silos(tree) == pytest.approx([0.5, 2.0, 0.5])
    tree["algorithm"]["weights"] = "size"
    with pytest.raises(InvalidStudy, match=r"algorithm\.weights"):
        parse(tree)


def test_weights_that_need_a_calibration_for_each_of_many_silos_are_refused() -> None:
    """Where every silo draws one record, by records there are as many kinds as there are sizes."""
    tree = study_tree(80)
    tree["algorithm"] |= {"name": "shuffled-mb-sgd", "weights": "records"}
    for count, silo in enumerate(tree["silos"], start=100):
        silo |= {"records": count, "sign_key": b64encode(b"%32d" % count).decode()}
    with pytest.raises(InvalidStudy, match=r"at most 64 different weights.*these have 80"):
        parse(tree)
    tree["algorithm"]["weights"] = "equal"
    assert parse(tree).minibatch.count == 1


# The silo that drives the noise ------------------------------------------------------------------


def silos_of(
    records: list[int], weighting: Weighting, strict: int | None = None
) -> list[Participant]:
    """Silos of so many records; the one at the place `strict` was promised more."""
    each = zip(records, weights(weighting, records), strict=True)
    return [
        Participant(count, STRICT if index == strict else TARGET, weight)
        for index, (count, weight) in enumerate(each)
    ]


def test_the_silo_that_drives_the_noise_is_named_with_what_it_costs() -> None:
    found = costliest(silos_of(UNEQUAL, Weighting.EQUAL))
    assert found is not None
    assert (found.place, found.for_its_target) == (0, False)
    assert found.times == pytest.approx(10_000 / 300 * sqrt(9 / 10))
    assert costliest(silos_of(UNEQUAL, Weighting.RECORDS)) is None
    assert costliest(silos_of([500, 510, 490], Weighting.EQUAL)) is None
    assert costliest(silos_of([500], Weighting.EQUAL)) is None
    assert costliest(silos_of([300, 4000], Weighting.RECORDS)) is None  # already by records
    strict = costliest(silos_of(UNEQUAL, Weighting.RECORDS, strict=4))
    assert strict is not None
    assert (strict.place, strict.for_its_target) == (4, True)


@pytest.mark.parametrize("weighting", [Weighting.EQUAL, Weighting.RECORDS])
@pytest.mark.parametrize("strict", [None, 1])
def test_what_a_silo_costs_is_what_the_mechanism_would_save_without_it(
    weighting: Weighting, strict: int | None
) -> None:
    records = [80, 300, 350, 500]
    found = costliest(silos_of(records, weighting, strict))
    if weighting is Weighting.RECORDS and strict is None:
        assert found is None
        return
    assert found is not None
    assert found.place == (strict or 0)
    rest = records[: found.place] + records[found.place + 1 :]

    def noise(of: list[Participant]) -> float:
        made = Mechanism.calibrate(of, clip=0.25, dimension=5, phases=[Phase(20)])
        return made.sigma() / sqrt(len(of))

    saved = noise(silos_of(records, weighting, strict)) / noise(silos_of(rest, weighting))
    assert found.times == pytest.approx(saved, rel=0.01)
