"""Strict reading of tables: what test_study.py does not reach through a study file."""

import pytest
from silomix_core.toml_table import InvalidField, TomlTable


@pytest.mark.parametrize("data", [None, 1, "x", [1]])
def test_what_is_not_a_table_is_refused(data: object) -> None:
    with pytest.raises(InvalidField, match="the file: expected a table"):
        TomlTable(data)
    with pytest.raises(InvalidField, match=r"a\.b: expected a table"):
        TomlTable(data, "a.b")


def test_a_list_of_texts_holds_texts_only() -> None:
    assert TomlTable({"names": ["a", "b"]}).texts("names") == ("a", "b")
    with pytest.raises(InvalidField, match=r"at\.names: expected a list of strings"):
        TomlTable({"names": ["a", 1]}, "at").texts("names")


def test_reading_a_table_leaves_the_parsed_file_alone() -> None:
    data = {"a": 1}
    TomlTable(data).whole("a")
    assert data == {"a": 1}


def test_a_key_can_be_taken_once() -> None:
    table = TomlTable({"a": 1})
    assert table.has("a")
    table.whole("a")
    assert not table.has("a")
    with pytest.raises(InvalidField, match="missing key: a"):
        table.whole("a")


def test_finish_names_all_unknown_keys() -> None:
    with pytest.raises(InvalidField, match=r"unknown key: here\.a, here\.b"):
        TomlTable({"b": 1, "a": 2}, "here").finish()


def test_a_default_stands_in_for_an_absent_key_only() -> None:
    table = TomlTable({"given": 0})
    assert table.whole("given", 7) == 0
    assert table.whole("absent", 7) == 7
    assert table.number("absent", 0.5) == 0.5
    assert table.text("absent", "x") == "x"
    assert table.choice("absent", ["x", "y"], "y") == "y"
    assert table.flag("absent", default=True) is True
    assert table.flag("absent", default=False) is False


@pytest.mark.parametrize("value", [True, False])
def test_a_flag_is_what_the_file_says_whatever_its_default(value: bool) -> None:
    for default in (True, False):
        assert TomlTable({"a": value}).flag("a", default=default) is value


@pytest.mark.parametrize("value", [0, 1, 1.0, "true", "", None, [], [True]])
def test_only_true_and_false_are_flags(value: object) -> None:
    with pytest.raises(InvalidField, match=r"^at\.a: expected true or false"):
        TomlTable({"a": value}, "at").flag("a", default=True)


def test_whole_numbers_are_numbers() -> None:
    value = TomlTable({"a": 3}).number("a")
    assert (value, type(value)) == (3.0, float)


def test_build_names_the_table_in_errors_of_values_but_not_twice() -> None:
    def fail() -> None:
        raise ValueError("too small")

    def fail_named() -> None:
        raise InvalidField("deep.key: too small")

    with pytest.raises(InvalidField, match=r"^here: too small$"):
        TomlTable({}, "here").build(fail)
    with pytest.raises(InvalidField, match=r"^too small$"):
        TomlTable({}).build(fail)
    with pytest.raises(InvalidField, match=r"^deep\.key: too small$"):
        TomlTable({}, "here").build(fail_named)
    assert TomlTable({}).build(lambda: 5) == 5


@pytest.mark.parametrize("text", ["", "x", "a b", "x" * 100, "Größe (µg/l)", "an e\u0301"])
def test_a_short_text_is_taken_as_it_is(text: str) -> None:
    assert TomlTable({"a": text}).short_text("a") == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x" * 101, "longer than 100 characters"),
        (" x", "spaces"),
        ("x ", "spaces"),
        (" ", "spaces"),
        ("a  b", "spaces"),
        ("a\tb", "control characters"),
        ("a\u00a0b", "control characters"),
        ("a\u202eb", "control characters"),
        ("a\u2800b", "invisible"),
        ("a\u3164b", "invisible"),
    ],
)
def test_a_text_that_would_not_look_like_itself_is_refused_and_named(
    text: str, reason: str
) -> None:
    with pytest.raises(InvalidField, match=rf"^at\.a: .*{reason}"):
        TomlTable({"a": text}, "at").short_text("a")


@pytest.mark.parametrize("host", ["localhost", "a.b-c.org", "7seas.org", "127.0.0.1", "[::1]"])
@pytest.mark.parametrize("port", ["1", "80", "65535"])
def test_an_address_is_a_host_and_a_port(host: str, port: str) -> None:
    assert TomlTable({"a": f"{host}:{port}"}).address("a") == f"{host}:{port}"


@pytest.mark.parametrize(
    "host",
    [
        "",
        ".",
        "a.",
        ".a",
        "a..b",
        "-a",
        "a-",
        "a_b",
        "a b",
        "a/b",
        "a@b",
        "http://a",
        "é.org",
        "x" * 64,
        "::1",
        "[::1",
        "[]",
        "[1.2.3.4]",
        "[:::1]",
        "[fe80::1%eth0]",
        "[::1]a",
        "127.1",
        "2130706433",
        "0x7f000001",
        "127.0.0.0x1",
        "1.2.3.256",
        "1.2.3.04",
        "a.7",
    ],
)
def test_a_host_that_resolvers_would_guess_at_is_refused(host: str) -> None:
    with pytest.raises(InvalidField, match=r"^at\.a: .* is not host:port$"):
        TomlTable({"a": f"{host}:80"}, "at").address("a")


@pytest.mark.parametrize(
    "port",
    ["", ":", ":0", ":65536", ":080", ":-1", ":+1", ":x", ":1/x", ":1:1", ":１", ":99999999"],
)
def test_a_port_that_is_none_is_refused(port: str) -> None:
    with pytest.raises(InvalidField, match=r"^at\.a: .* is not host:port$"):
        TomlTable({"a": f"localhost{port}"}, "at").address("a")


def test_a_refusal_shows_no_control_characters_and_little_of_the_file() -> None:
    with pytest.raises(InvalidField) as unknown:
        TomlTable({"\x1b[2J": 1, "x" * 10_000: 2}).finish()
    with pytest.raises(InvalidField) as mistyped:
        TomlTable({"a": ["\x1b[2J" * 10_000]}).whole("a")
    with pytest.raises(InvalidField) as strange:
        TomlTable({"a": "x" * 10_000}).choice("a", ["y"])
    for refusal in (unknown, mistyped, strange):
        assert str(refusal.value).isprintable()
        assert len(str(refusal.value)) < 600
