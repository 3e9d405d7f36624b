"""OMOP tables as hospitals have them: entries of nobody, and numbers as texts."""

from pathlib import Path

import pytest
from silomix_client.data.clinical.omop import Omop
from silomix_client.data.database_url import DatabaseUrl
from silomix_client.data.records import read
from silomix_client.data.source import Source
from silomix_client.errors import BadRecords
from support.clinical import ADA, NOON, altered, cohort_source, features, loosen, made
from support.hospitals import HOSPITAL, Event


@pytest.mark.parametrize("person", ["99", "NULL"])
def test_an_omop_entry_of_nobody_in_person_is_refused(person: str, tmp_path: Path) -> None:
    source = made("omop-sqlite", tmp_path, [ADA], [Event(7, NOON, "diabetes", True)])
    table = "condition_occurrence"
    loosen(tmp_path, table)
    altered(tmp_path, f"UPDATE {table} SET person_id = {person}")  # noqa: S608
    shown = "None" if person == "NULL" else person
    with pytest.raises(
        BadRecords, match=rf"condition_occurrence 1: person {shown} is not in the table person"
    ):
        read(source, HOSPITAL)


def test_a_person_without_an_identifier_is_refused(tmp_path: Path) -> None:
    source = made("omop-sqlite", tmp_path, [ADA], [])
    loosen(tmp_path, "person")
    altered(tmp_path, "UPDATE person SET person_id = NULL")
    with pytest.raises(BadRecords, match="the table person has a row without person_id"):
        read(source, HOSPITAL)


def test_an_identifier_is_the_same_as_a_number_and_as_text(tmp_path: Path) -> None:
    events = [Event(7, NOON, "diabetes", True)]
    expected = features(cohort_source(tmp_path, events))
    table = "condition_occurrence"
    loosen(tmp_path, table)
    altered(tmp_path, f"UPDATE {table} SET person_id = '7'")  # noqa: S608
    assert features(omop_again(tmp_path)) == expected


def omop_again(folder: Path) -> Source:
    return Omop(DatabaseUrl(folder, "url", "sqlite:///omop.sqlite"), cohort=17)


@pytest.mark.parametrize("cell", ["12O", "1_0", "high"])
def test_a_text_where_an_omop_number_belongs_is_refused(cell: str, tmp_path: Path) -> None:
    source = made("omop-sqlite", tmp_path, [ADA], [Event(7, NOON, "sbp", 120.0)])
    altered(tmp_path, f"UPDATE measurement SET value_as_number = '{cell}'")  # noqa: S608
    with pytest.raises(BadRecords, match=f"measurement 1, column 'sbp': not a number: '{cell}'"):
        read(source, HOSPITAL)


def test_an_empty_text_is_no_number(tmp_path: Path) -> None:
    source = made("omop-sqlite", tmp_path, [ADA], [Event(7, NOON, "sbp", 120.0)])
    altered(tmp_path, "UPDATE measurement SET value_as_number = ''")
    assert read(source, HOSPITAL).profile.features[2].missing == 1


@pytest.mark.parametrize("year", ["'1980'", "1980.0", "'1980.0'"])
def test_a_year_of_birth_may_be_a_text_or_a_float(year: str, tmp_path: Path) -> None:
    source = made("omop-sqlite", tmp_path, [ADA], [])
    expected = features(source)
    change = f"year_of_birth = {year}, month_of_birth = '6', gender_concept_id = '8532'"
    loosen(tmp_path, "person")
    altered(tmp_path, f"UPDATE person SET {change}")  # noqa: S608
    assert features(source) == expected


@pytest.mark.parametrize("year", ["'c. 1980'", "1980.5", "-7", "9e99", "x'00'"])
def test_a_year_of_birth_that_is_none_is_refused(year: str, tmp_path: Path) -> None:
    source = made("omop-sqlite", tmp_path, [ADA], [])
    loosen(tmp_path, "person")
    altered(tmp_path, f"UPDATE person SET year_of_birth = {year}")  # noqa: S608
    with pytest.raises(BadRecords, match="person 7, column 'year_of_birth': "):
        features(source)


def test_concepts_may_be_texts(tmp_path: Path) -> None:
    events = [Event(7, NOON, "diabetes", True), Event(7, NOON, "smoker", False)]
    source = made("omop-sqlite", tmp_path, [ADA], events)
    expected = features(source)
    for table, columns in (
        ("condition_occurrence", ["condition_concept_id"]),
        ("observation", ["observation_concept_id", "value_as_concept_id"]),
        ("concept_ancestor", ["ancestor_concept_id", "descendant_concept_id"]),
    ):
        for column in columns:
            altered(
                tmp_path,
                f"ALTER TABLE {table} ADD COLUMN as_text TEXT",
                f"UPDATE {table} SET as_text = {column}",  # noqa: S608
                f"ALTER TABLE {table} DROP COLUMN {column}",
                f"ALTER TABLE {table} RENAME COLUMN as_text TO {column}",
            )
    assert features(source) == expected
    altered(tmp_path, "UPDATE observation SET value_as_concept_id = 'no'")
    with pytest.raises(BadRecords, match="observation 2: not a concept: 'no'"):
        features(source)
