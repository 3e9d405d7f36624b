"""What clinical sources (OMOP, FHIR) have in common: they look for codes, not for columns.

A study says for every feature and for the label which codes mean it; here these become the
question that a source asks of each of its entries.  Two features come from a person's master data
instead: age and sex, by the codes that LOINC has for them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date

from silomix_core.task.cell_values import Cell
from silomix_core.task.feature import FeatureKind
from silomix_core.task.task import Task
from silomix_core.toml_table import InvalidField, TomlTable

from silomix_client.errors import BadRecords

AGE = "http://loinc.org|30525-0"
SEX = "http://loinc.org|46098-0"
# LOINC, SNOMED CT and HL7: yes, detected, present, positive; and their contraries
_YES = frozenset({"LA33-6", "LA6576-8", "373066001", "260373001", "52101004", "10828004"})
_NO = frozenset({"LA32-8", "LA6577-6", "373067005", "260415000", "2667000", "260385009"})
_WORDS = {"Y": True, "POS": True, "N": False, "NEG": False}
_SAID = dict.fromkeys(_YES, True) | dict.fromkeys(_NO, False) | _WORDS


@dataclass(frozen=True, slots=True)
class Wanted:
    """A column of the study: what it is, and what it is found by."""

    name: str
    kind: FeatureKind
    unit: str
    codes: tuple[str, ...]
    concepts: tuple[int, ...]
    categories: tuple[str, ...] = ()
    is_label: bool = False

    @property
    def is_master_data(self) -> bool:
        return AGE in self.codes or SEX in self.codes


def wanted(task: Task) -> tuple[Wanted, ...]:
    """The columns to find: the study's features, then its label."""
    features = tuple(
        Wanted(name, each.kind, each.unit, each.codes, each.concepts, each.categories)
        for each in task.features
        for name in each.columns
    )
    kind = FeatureKind.NUMBER if task.loss.is_regression else FeatureKind.FLAG
    if task.classes is not None:
        kind = FeatureKind.CATEGORY
    codes, concepts = task.label_codes, task.label_concepts
    return (
        *features,
        Wanted(task.label, kind, task.label_unit, codes, concepts, is_label=True),
    )


def check_study(task: Task, findable: Mapping[str, bool], what: str, description: str) -> None:
    """Refuse a study that takes every row for a person, or a column that cannot be found."""
    if task.person is None:
        raise BadRecords(
            f"{description}: entries of one person must be combined, but this study takes every "
            "row for another person; ask the study lead for one that names a person column"
        )
    lost = next((name for name, found in findable.items() if not found), None)
    if lost is not None:
        raise BadRecords(
            f"{description}: the study names no {what} for {lost!r}, so it cannot be found here; "
            "ask the study lead to add them"
        )


def age_at(born: date, day: date) -> int:
    """The age on a day, in whole years."""
    return day.year - born.year - ((day.month, day.day) < (born.month, born.day))


def read_day(table: TomlTable, key: str) -> date | None:
    """Read a date as 2025-12-31; None where the table does not have the key."""
    if not table.has(key):
        return None
    text = table.text(key)
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InvalidField(f"data.{key}: expected a date such as 2025-12-31: {text!r}") from None


def translated(
    column: Wanted, values: Mapping[str, Mapping[str, str]], texts: Iterable[str]
) -> Cell:
    """A coded answer in the study's own words.

    `texts` are the ways to name it here, best first: the operator's translation of one of them,
    else the one that the study lists, else the first, which then is refused with its name.
    """
    names = [text for text in texts if text]
    known = values.get(column.name, {})
    for name in names:
        if name in known:
            return known[name]
    for name in names:
        if name in column.categories:
            return name
    return names[0] if names else None


def answered(
    column: Wanted,
    values: Mapping[str, Mapping[str, str]],
    texts: Iterable[str],
    codes: Iterable[str],
) -> Cell:
    """A coded answer where a flag or a number belongs: as the operator says, else yes or no.

    Any other is refused with its name: a code is no number, even one of digits only.
    """
    names = [text for text in texts if text]
    known = values.get(column.name, {})
    for name in names:
        if name in known:
            return known[name]
    said = next((_SAID[code] for code in codes if code in _SAID), None)
    return said if said is not None or not names else f"code {names[0]}"


def unit_problem(column: Wanted, found: str) -> str | None:
    """What is wrong with a unit, if anything: a study that names none takes any."""
    if not column.unit or found == column.unit:
        return None
    if not found:
        return f"no unit, the study asks for {column.unit}"
    return f"the unit is {found[:40]!r}, the study asks for {column.unit}"
