"""Strict reading of tables: what test_study.py does not reach through a study file."""

import pytest
from silomix_core.fields import InvalidField, Table


@pytest.mark.parametrize("data", [None, 1, "x", [1]])
def test_what_is_not_a_table_is_refused(data: object) -> None:
    with pytest.raises(InvalidField, match="the file: expected a table"):
        Table(data)
    with pytest.raises(InvalidField, match=r"a\.b: expected a table"):
        Table(data, "a.b")


def test_a_list_of_texts_holds_texts_only() -> None:
    assert Table({"names": ["a", "b"]}).texts("names") == ("a", "b")
    with pytest.raises(InvalidField, match=r"at\.names: expected a list of strings"):
        Table({"names": ["a", 1]}, "at").texts("names")


def test_reading_a_table_leaves_the_parsed_file_alone() -> None:
    data = {"a": 1}
    Table(data).whole("a")
    assert data == {"a": 1}


def test_a_key_can_be_taken_once() -> None:
    table = Table({"a": 1})
    assert table.has("a")
    table.whole("a")
    assert not table.has("a")
    with pytest.raises(InvalidField, match="missing key: a"):
        table.whole("a")


def test_finish_names_all_unknown_keys() -> None:
    with pytest.raises(InvalidField, match=r"unknown key: here\.a, here\.b"):
        Table({"b": 1, "a": 2}, "here").finish()


def test_a_default_stands_in_for_an_absent_key_only() -> None:
    table = Table({"given": 0})
    assert table.whole("given", 7) == 0
    assert table.whole("absent", 7) == 7
    assert table.number("absent", 0.5) == 0.5
    assert table.text("absent", "x") == "x"
    assert table.choice("absent", ["x", "y"], "y") == "y"


def test_whole_numbers_are_numbers() -> None:
    value = Table({"a": 3}).number("a")
    assert (value, type(value)) == (3.0, float)


def test_build_names_the_table_in_errors_of_values_but_not_twice() -> None:
    def fail() -> None:
        raise ValueError("too small")

    def fail_named() -> None:
        raise InvalidField("deep.key: too small")

    with pytest.raises(InvalidField, match=r"^here: too small$"):
        Table({}, "here").build(fail)
    with pytest.raises(InvalidField, match=r"^too small$"):
        Table({}).build(fail)
    with pytest.raises(InvalidField, match=r"^deep\.key: too small$"):
        Table({}, "here").build(fail_named)
    assert Table({}).build(lambda: 5) == 5
