"""The reader of a study file refuses and names whatever is not as it should be."""

import re
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from silomix_core.study.reader import parse_study
from silomix_core.study.study import InvalidStudy
from support.studies import (
    Path,
    Tree,
    at,
    naming,
    parse,
    study_bytes,
    study_tree,
    with_value,
    written,
)

TABLES: list[Path] = [
    (),
    ("task",),
    ("task", "features", 0),
    ("task", "features", 1),
    ("algorithm",),
    ("privacy",),
    ("batch",),
    ("silos", 0),
    ("silos", 2),
    ("mixes", 0),
    ("server",),
]
OPTIONAL: set[Path] = {("task", "features", 0, "missing"), ("task", "features", 1, "count")}
KEYS: list[Path] = [
    (*table, key) for table in TABLES for key in at(study_tree(), table) if key != "features"
]


def of_type(*kinds: type) -> list[Path]:
    return [path for path in KEYS if type(at(study_tree(), path)) in kinds]


# these take any number; the other numbers of the tree are whole
NUMBERS: list[Path] = [
    ("task", "bias"),
    ("task", "features", 0, "low"),
    ("task", "features", 0, "high"),
    ("task", "features", 0, "missing"),
    ("algorithm", "radius"),
    ("privacy", "clip"),
    ("privacy", "epsilon"),
    ("privacy", "delta"),
    ("batch", "deadline_s"),
]
WHOLES: list[Path] = [
    ("version",),
    ("task", "features", 1, "count"),
    ("algorithm", "rounds"),
    ("batch", "minimum"),
    ("silos", 1, "records"),
]
TEXTS = of_type(str)


@pytest.mark.parametrize("table", TABLES, ids=written)
def test_an_unknown_key_is_refused_and_named(table: Path) -> None:
    path = (*table, "surprise")
    with pytest.raises(InvalidStudy, match=f"unknown key: {naming(path)}$"):
        parse(with_value(path, 1))


@pytest.mark.parametrize("path", [path for path in KEYS if path not in OPTIONAL], ids=written)
def test_a_missing_key_is_refused_and_named(path: Path) -> None:
    tree = study_tree()
    del at(tree, path[:-1])[path[-1]]
    with pytest.raises(InvalidStudy, match=f"missing key: {naming(path)} "):
        parse(tree)


@pytest.mark.parametrize("name", ["gate", "tokens"])
def test_a_study_can_do_without_gate_or_tokens_by_saying_so(name: str) -> None:
    for value in (True, False):
        batching = parse(with_value(("batch", name), value)).batching
        assert getattr(batching, name) is value
        assert batching.gate + batching.tokens == 1 + value


@pytest.mark.parametrize("name", ["gate", "tokens"])
@pytest.mark.parametrize("value", [0, 1, "false", "", []])
def test_gate_and_tokens_are_true_or_false_and_nothing_else(name: str, value: object) -> None:
    with pytest.raises(InvalidStudy, match=rf"batch\.{name}: expected true or false"):
        parse(with_value(("batch", name), value))


def test_parties_may_not_share_a_signing_key() -> None:
    for path in (("mixes", 0, "sign_key"), ("server", "sign_key"), ("silos", 1, "sign_key")):
        shared = study_tree()["silos"][0]["sign_key"]
        with pytest.raises(InvalidStudy, match="share a key"):
            parse(with_value(path, shared))


def test_what_all_mixes_state_about_a_round_is_limited() -> None:
    tree = study_tree()
    mixes = [tree["mixes"][0] | {"name": f"m{index}"} for index in range(65)]
    for index, mix in enumerate(mixes):
        mix["sign_key"] = b64encode((1000 + index).to_bytes(32, "big")).decode()
    assert len(parse(tree | {"mixes": mixes[:-1]}).mixes) == 64
    with pytest.raises(InvalidStudy, match="at most 64 mixes"):
        parse(tree | {"mixes": mixes})


def test_a_roster_times_the_mixes_is_limited() -> None:
    tree = study_tree()
    mixes, silo = tree["mixes"][:1], tree["silos"][0]
    silos = [
        silo
        | {
            "name": f"s{index}",
            "sign_key": b64encode((10**6 + index).to_bytes(32, "big")).decode(),
            "node_key": b64encode((10**7 + index).to_bytes(32, "big")).decode(),
        }
        for index in range(10_001)
    ]
    assert len(parse(tree | {"mixes": mixes, "silos": silos[:-1]}).silos) == 10_000
    with pytest.raises(InvalidStudy, match="silos times mixes at most 10000"):
        parse(tree | {"mixes": mixes, "silos": silos})


def test_a_missing_value_rule_defaults_to_the_middle_and_a_count_to_one() -> None:
    tree = study_tree()
    for path in OPTIONAL:
        del at(tree, path[:-1])[path[-1]]
    features = parse(tree).task.features
    assert [feature.missing for feature in features] == [50, 0]
    assert [feature.count for feature in features] == [1, 1]


@pytest.mark.parametrize("path", KEYS, ids=written)
@pytest.mark.parametrize("value", [True, [[]]], ids=["bool", "nested"])
def test_a_value_of_a_wrong_type_is_refused_and_named(path: Path, value: object) -> None:
    with pytest.raises(InvalidStudy, match=naming(path)):
        parse(with_value(path, value))


@pytest.mark.parametrize("path", TEXTS, ids=written)
def test_a_number_is_not_a_text(path: Path) -> None:
    with pytest.raises(InvalidStudy, match=f"{naming(path)}: expected a string"):
        parse(with_value(path, 1))


@pytest.mark.parametrize("path", NUMBERS + WHOLES, ids=written)
def test_a_text_is_not_a_number(path: Path) -> None:
    with pytest.raises(InvalidStudy, match=naming(path)):
        parse(with_value(path, "1"))


@pytest.mark.parametrize("path", WHOLES, ids=written)
def test_a_fraction_is_not_a_whole_number(path: Path) -> None:
    with pytest.raises(InvalidStudy, match=f"{naming(path)}: expected a whole number"):
        parse(with_value(path, 2.0))


@pytest.mark.parametrize("path", NUMBERS, ids=written)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_refused(path: Path, value: float) -> None:
    with pytest.raises(InvalidStudy, match=f"{naming(path)}: expected a finite number"):
        parse(with_value(path, value))


@pytest.mark.parametrize("path", NUMBERS, ids=written)
def test_a_number_too_large_for_a_float_is_refused(path: Path) -> None:
    with pytest.raises(InvalidStudy, match=naming(path)):
        parse(with_value(path, 10**400))


@pytest.mark.parametrize("path", WHOLES, ids=written)
def test_a_whole_number_beyond_all_bounds_is_refused(path: Path) -> None:
    with pytest.raises(InvalidStudy):
        parse(with_value(path, 10**400))


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        (("version",), 2, "version 2 is not supported"),
        (("version",), 0, "version 0 is not supported"),
        (("task", "loss"), "zero-one", "task.loss: 'zero-one' is not one of absolute, hinge"),
        (("task", "loss"), "squared", "missing key: task.label_low"),
        (("task", "label_low"), 0, "unknown key: task.label_low"),
        (("task", "level"), 0.5, "unknown key: task.level"),
        (("task", "scaling"), "none", "task.scaling: 'none' is not one of"),
        (("task", "bias"), 0, "task: bias"),
        (("task", "label"), "age", "task: the label 'age' is also listed"),
        (("task", "features"), [], "task: a task needs at least one feature"),
        (("task", "features", 1, "name"), "age", "task: feature names must differ"),
        (("task", "features", 0, "high"), 0, "task.features[0]: feature 'age': low"),
        (("task", "features", 0, "missing"), 101, "task.features[0]: feature 'age': missing"),
        (("task", "features", 1, "count"), 0, "task.features[1]: feature 'lab': count"),
        (("algorithm", "name"), "adam", "algorithm.name: 'adam' is not one of accelerated-mb-sgd"),
        (("algorithm", "rounds"), 0, "algorithm.rounds"),
        (("algorithm", "rounds"), 1_000_001, "algorithm.rounds"),
        (("algorithm", "radius"), 0, "algorithm.radius"),
        (("algorithm", "radius"), -1, "algorithm.radius"),
        (("algorithm", "radius"), 1.7e308, "algorithm.radius"),
        (("algorithm", "radius"), 9e-10, "algorithm.radius"),
        (("privacy", "clip"), 0, "privacy.clip"),
        (("privacy", "clip"), 5e-324, "privacy.clip"),
        (("privacy", "clip"), 9e-10, "privacy.clip"),
        (("privacy", "clip"), 1e300, "privacy.clip"),
        (("privacy", "epsilon"), 0, "privacy: epsilon"),
        (("privacy", "epsilon"), 101, "privacy: epsilon"),
        (("privacy", "epsilon"), 9e-4, "privacy: epsilon must be at least 0.001"),
        (("privacy", "delta"), 0, "privacy: delta"),
        (("privacy", "delta"), 0.1, "privacy: delta"),
        (("batch", "minimum"), 0, "batch.minimum"),
        (("batch", "minimum"), 4, "batch.minimum"),
        (("batch", "deadline_s"), 0, "batch.deadline_s"),
        (("batch", "deadline_s"), 86_401, "batch.deadline_s"),
        (("silos",), [], "at least one silo"),
        (("mixes",), [], "at least one mix"),
        (("silos", 0, "records"), 0, "silo 'silo-0': records"),
        (("silos", 0, "records"), 2**27, "silo 'silo-0': records"),
        (("silos", 1, "name"), "silo-0", "different names"),
        (("mixes", 0, "name"), "silo-0", "different names"),
        (("server", "name"), "mix-1", "different names"),
        (("silos", 0, "name"), "", "party name ''"),
        (("silos", 0, "name"), "-", "party name '-'"),
        (("silos", 0, "name"), "a/../b", "party name 'a/../b'"),
        (("silos", 0, "name"), "münchen", "party name 'münchen'"),
        (("silos", 0, "name"), "a\nb", "control characters"),
        (("mixes", 0, "name"), "x" * 64, "party name"),
        (("server", "name"), "two words", "party name 'two words'"),
        (("silos", 0, "sign_key"), "not base64!", "silos[0]: "),
        (("mixes", 0, "sign_key"), "AAA", "mixes[0]: "),
        (("mixes", 0, "seal_key"), "AAAA", "unknown key: mixes[0].seal_key"),
        (("server", "seal_key"), "AAAA", "unknown key: server.seal_key"),
        (("server", "sign_key"), "é", "server: "),
        (("silos",), [1], "silos[0]: expected a table"),
        (("server",), [], "server: expected a table"),
        (("mixes",), {}, "mixes: expected an array of tables"),
    ],
)
def test_a_study_that_cannot_be_run_is_refused(path: Path, value: object, reason: str) -> None:
    with pytest.raises(InvalidStudy, match=re.escape(reason)):
        parse(with_value(path, value))


@pytest.mark.parametrize("content", [b"\xff\xfe", b"version = ", b"= 1", b"version = 1\nversion=1"])
def test_what_is_not_toml_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidStudy, match="not a TOML file"):
        parse_study(content)


@pytest.mark.parametrize(
    "value",
    ["[\n" * 20_000 + "]" * 4000, "{a=" * 2000 + "1" + "}" * 2000],
    ids=["lists", "tables"],
)
def test_deep_nesting_is_refused_as_a_study(value: str) -> None:
    with pytest.raises(InvalidStudy, match="nested too deeply"):
        parse_study(f"x = {value}\n".encode() + study_bytes(study_tree()))


def test_a_value_too_deep_to_be_shown_is_refused_as_a_study() -> None:
    content = study_bytes(study_tree()).replace(b"version = 1", b"version." + b"a." * 2000 + b"a=1")
    shown = r"version: expected a whole number, got .{1,100}$"  # where Python shows such a value
    with pytest.raises(InvalidStudy, match=f"nested too deeply|{shown}"):
        parse_study(content)


def test_an_empty_file_is_refused() -> None:
    with pytest.raises(InvalidStudy, match="missing key: version"):
        parse_study(b"")


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_as_a_study(content: bytes) -> None:
    with pytest.raises(InvalidStudy):
        parse_study(content)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS.filter(lambda value: value is not None),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@given(st.sampled_from([*KEYS, *(table for table in TABLES if table)]), VALUES)
def test_any_value_anywhere_gives_a_study_or_a_clear_refusal(path: Path, value: object) -> None:
    """Nothing but InvalidStudy comes out of a file, and its message is never empty."""
    tree: Tree = with_value(path, value)
    try:
        parse(tree)
    except InvalidStudy as error:
        refusal = str(error)
    else:
        refusal = "none"
    assert refusal
