"""[data] of a silo.toml: what is accepted, and that every refusal names the file and the key."""

from pathlib import Path

import pytest
from silomix_client.config.silo_config import load
from silomix_client.data.columns import Layout
from silomix_client.data.csv_file import CsvFile
from silomix_client.data.database_url import DatabaseUrl
from silomix_client.data.parquet_file import ParquetFile
from silomix_client.data.source import Source
from silomix_client.data.sql_query import SqlQuery
from silomix_client.errors import InvalidSiloConfig


def written(folder: Path, data: str, policy: str = "") -> Path:
    path = folder / "silo.toml"
    path.write_text(f'name = "a"\npolicy = "policy.toml"\n{data}\n')
    (folder / "policy.toml").write_text(f"epsilon = 3.0\ndelta = 1e-6\n{policy}\n")
    return path


def source(folder: Path, data: str) -> Source:
    return load(written(folder, data)).data


def refusal(folder: Path, data: str, policy: str = "") -> str:
    with pytest.raises(InvalidSiloConfig) as caught:
        load(written(folder, data, policy))
    return str(caught.value)


def test_a_path_alone_is_a_csv_file(tmp_path: Path) -> None:
    assert source(tmp_path, 'data = "d.csv"') == CsvFile(tmp_path / "d.csv")
    assert source(tmp_path, '[data]\nkind = "csv"\npath = "d.csv"') == CsvFile(tmp_path / "d.csv")


def test_a_table_says_what_columns_and_codes_are_called_here(tmp_path: Path) -> None:
    text = """
    [data]
    kind = "parquet"
    path = "d.parquet"
    person = "mrn"
    time = "seen"
    columns = { SBP = "sbp" }
    values.sex = { M = "male", F = "female" }
    """
    layout = Layout({"SBP": "sbp"}, {"sex": {"M": "male", "F": "female"}}, "mrn", "seen")
    assert source(tmp_path, text) == ParquetFile(tmp_path / "d.parquet", layout)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("url_file", "database.url"),
        ("url_env", "CLINIC_URL"),
        ("url", "sqlite:///clinic.sqlite"),
        ("url", "postgresql://reader@db.example:5432/clinic?sslmode=verify-full"),
    ],
)
def test_a_query_says_where_its_database_is_in_one_of_three_ways(
    tmp_path: Path, key: str, value: str
) -> None:
    text = f'[data]\nkind = "sql"\n{key} = "{value}"\nquery = """\nSELECT *\nFROM visits\n"""'
    query = "SELECT *\nFROM visits\n"
    assert source(tmp_path, text) == SqlQuery(DatabaseUrl(tmp_path, key, value), query)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ('[data]\npath = "d.csv"', "missing key: data.kind"),
        ('[data]\nkind = "excel"', "data.kind: 'excel' is not one of csv"),
        ('[data]\nkind = "csv"', "missing key: data.path"),
        ('[data]\nkind = "csv"\npath = "x"\nquery = "x"', "unknown key: data.query"),
        ('[data]\nkind = "csv"\npath = "x"\ncolumns = ["a"]', "data.columns: expected a table"),
        ('[data]\nkind = "csv"\npath = "x"\ncolumns.a = 1', "data.columns.a: expected a string"),
        ('[data]\nkind = "csv"\npath = "x"\nvalues.a = "b"', "data.values.a: expected a table"),
        (
            '[data]\nkind = "csv"\npath = "x"\ncolumns = { a = "x", b = "x" }',
            "data.columns: two columns are given the same name",
        ),
        ('[data]\nkind = "sql"\nurl_env = "X"', "missing key: data.query"),
        ('[data]\nkind = "sql"\nurl_env = "X"\nquery = " "', "data.query: empty"),
        ('[data]\nkind = "sql"\nquery = "x"', "say where the database is by one of url_file"),
        (
            '[data]\nkind = "sql"\nquery = "x"\nurl_file = "a"\nurl_env = "B"',
            "say where the database is by one of url_file",
        ),
        ("data = 7", "data: expected a string, got 7"),
    ],
)
def test_what_no_source_can_mean_is_refused_by_name(tmp_path: Path, data: str, reason: str) -> None:
    message = refusal(tmp_path, data)
    assert message.startswith(f"{tmp_path / 'silo.toml'}: ")
    assert reason in message


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://reader:sesame@db.example/clinic",
        "postgresql://reader:@db.example/clinic",
        "postgresql://db.example/clinic?user=reader&password=sesame",
        "postgresql://reader:ses@me@db.example/clinic",
        "postgresql://db.example/clinic?sslpassword=sesame",
        "postgresql://reader:ses/ame@db.example/clinic",
    ],
)
def test_a_password_does_not_belong_into_the_configuration_and_is_not_shown(
    tmp_path: Path, url: str
) -> None:
    message = refusal(tmp_path, f'[data]\nkind = "sql"\nurl = "{url}"\nquery = "SELECT 1"')
    assert "data.url: an address with a password does not belong into this file" in message
    assert "ses" not in message


def test_two_populations_cannot_have_the_same_data_in_other_words(tmp_path: Path) -> None:
    main = '[data]\nkind = "sql"\nurl_env = "X"\nquery = "SELECT * FROM a"'
    other = """[[populations]]
    name = "children"
    epsilon = 1.0
    delta = 1e-6
    data = { kind = "sql", url_env = "X", query = "SELECT  *  FROM %s" }"""
    children = load(written(tmp_path, main, other % "b")).data_of("children")
    assert children == SqlQuery(DatabaseUrl(tmp_path, "url_env", "X"), "SELECT  *  FROM b")
    assert "two populations have the same data" in refusal(tmp_path, main, other % "a")
