"""A study file may be written by an attacker: forged lines, absurd numbers, endless columns."""

import pytest
from silomix_core.accounting.composition import CalibrationImpossible
from silomix_core.accounting.events import PrivacyTarget, Scheme
from silomix_core.mechanism.mechanism import Mechanism, Minibatch, Participant, Phase
from silomix_core.study.reader import parse_study
from silomix_core.study.study import InvalidStudy
from support.studies import Path, Tree, naming, parse, study_bytes, study_tree, with_value, written

NAMES: list[Path] = [
    ("name",),
    ("task", "label"),
    ("task", "features", 0, "name"),
    ("silos", 0, "name"),
    ("mixes", 0, "name"),
    ("server", "name"),
]
ADDRESSES: list[Path] = [
    ("mixes", 0, "address"),
    ("server", "fleet_address"),
    ("server", "channel_address"),
]


@pytest.mark.parametrize("path", NAMES + ADDRESSES, ids=written)
@pytest.mark.parametrize("value", ["x" * 101, " x", "x ", "a  b", "a\u2800b", "a\u3164b"])
def test_a_text_that_could_forge_a_line_on_the_screen_is_refused_and_named(
    path: Path, value: str
) -> None:
    with pytest.raises(InvalidStudy, match=f"^{naming(path)}: "):
        parse(with_value(path, value))


@pytest.mark.parametrize("path", NAMES[:3], ids=written)
def test_a_name_may_have_a_hundred_characters_of_any_alphabet(path: Path) -> None:
    for name in ("x" * 100, "Größe (µg/l), 1. Tag", "血压 mmHg"):
        parse(with_value(path, name))


@pytest.mark.parametrize("path", ADDRESSES, ids=written)
@pytest.mark.parametrize("value", ["127.0.0.1:1/../../x", "hospital.org", "a@b:1", "[::1]"])
def test_an_address_that_is_not_host_and_port_is_refused_and_named(path: Path, value: str) -> None:
    with pytest.raises(InvalidStudy, match=f"^{naming(path)}: .* is not host:port"):
        parse(with_value(path, value))


@pytest.mark.parametrize("path", ADDRESSES, ids=written)
def test_a_study_names_hosts_as_the_internet_does(path: Path) -> None:
    for address in ("mix-1.hospital.org:443", "10.0.0.7:7001", "[2001:db8::1]:65535"):
        assert address in repr(parse(with_value(path, address)))


def test_the_columns_of_all_features_together_are_limited_before_any_is_named() -> None:
    most = {"name": "f0", "low": 0, "high": 1, "count": 2**21}
    assert parse(with_value(("task", "features"), [most])).task.dimension == 2**21 + 1
    many = [most | {"name": f"f{index}"} for index in range(12)]
    with pytest.raises(InvalidStudy, match="task: the features have more than 2097152 columns"):
        parse(with_value(("task", "features"), many))


def with_targets(different: int, sampling: Tree) -> Tree:
    """Ten silos; one keeps the study's promise, the others share `different` − 1 of their own."""
    tree = study_tree(10)
    tree["privacy"] |= sampling
    for index, silo in enumerate(tree["silos"][1:]):
        silo |= {"epsilon": 1 + index % (different - 1) / 100, "delta": 1e-5}
    return tree


@pytest.mark.parametrize("scheme", ["poisson", "without-replacement"])
def test_drawn_batches_allow_eight_different_promises_and_no_more(scheme: str) -> None:
    sampling = {"sampling": scheme, "ratio": 0.5}
    assert len({silo.target for silo in parse(with_targets(8, sampling)).silos}) == 8
    with pytest.raises(InvalidStudy, match=rf"{scheme} batches .* at most 8 .* these have 9"):
        parse(with_targets(9, sampling))


def test_full_batches_allow_every_silo_its_own_promise() -> None:
    assert parse(with_targets(10, {})).mechanism().rounds == 5


@pytest.mark.slow
@pytest.mark.parametrize("clip", [1e-9, 1e9])
@pytest.mark.parametrize(
    "sampling", [{}, {"sampling": "poisson", "ratio": 1e-9}], ids=["full", "poisson"]
)
def test_numbers_at_the_ends_of_their_ranges_give_a_mechanism(clip: float, sampling: Tree) -> None:
    tree = with_value(("privacy", "clip"), clip)
    tree["privacy"] |= sampling
    assert parse(tree).mechanism().sigma() > 0


@pytest.mark.parametrize(
    ("clip", "batch"),
    [
        (5e-324, Minibatch()),
        (1.7e308, Minibatch()),
        (1.0, Minibatch(Scheme.POISSON, 1e-310)),
        (1e-9, Minibatch(Scheme.POISSON, 1e-309)),
    ],
)
def test_steps_that_no_float_can_hold_are_refused_with_the_reason(
    clip: float, batch: Minibatch
) -> None:
    silo = Participant(100, PrivacyTarget(1, 1e-5))
    with pytest.raises(CalibrationImpossible, match="no float can hold"):
        Mechanism.calibrate([silo], clip=clip, dimension=4, phases=[Phase(5)], minibatch=batch)


@pytest.mark.parametrize("line", [b"a." * 5000 + b"a = 1\n", b"# " + b"x" * 9000])
def test_a_line_that_would_take_long_to_read_is_refused_at_once(line: bytes) -> None:
    with pytest.raises(InvalidStudy, match="a line longer than"):
        parse_study(study_bytes(study_tree()) + line)


def test_drawn_batches_have_a_limit_on_rounds() -> None:
    tree = with_value(("algorithm", "rounds"), 10_001)
    tree["privacy"] |= {"sampling": "poisson", "ratio": 0.5}
    with pytest.raises(InvalidStudy, match="at most 10000 with poisson batches"):
        parse(tree)


def test_a_hold_out_that_leaves_a_silo_nothing_to_learn_from_is_refused() -> None:
    tree = with_value(("algorithm", "name"), "localized-subgradient")
    tree["evaluation"] = {"share": 0.99}
    for silo in tree["silos"]:
        silo["records"] = 40
    with pytest.raises(ValueError, match="none left to learn from"):
        parse(tree).mechanism()
