"""What a study says about one of its features: everything that a hospital must know to supply it.

Kind, unit, public bounds or categories, what stands for a missing value, and the rule that makes
one value of the several that a person's rows may have.  Nothing here is measured on data.
"""

import re
from dataclasses import dataclass
from enum import Enum
from math import isfinite

MOST_COLUMNS = 2**21
FARTHEST_BOUND = 1e300  # beyond, differences of bounds overflow
NO_CATEGORY = -1.0  # the raw value of a category that was not recorded
_MOST_CATEGORIES = 1000
_COLUMN_NUMBER = re.compile("[1-9][0-9]{0,6}")
_CODE = re.compile(r"[^\s|]+\|[^\s|]+")


class FeatureKind(Enum):
    """The kind of a feature: what a cell is, and how it becomes coordinates."""

    NUMBER = "number"  # clamped to [low, high], one coordinate in [−1, 1]
    FLAG = "flag"  # true or false, one coordinate: −1 or 1
    CATEGORY = "category"  # one of a list, a coordinate for each of them: 0 or 1


class Combine(Enum):
    """The rules by which the values in several rows of one person become one."""

    LAST = "last"  # by the study's time column
    FIRST = "first"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"
    SUM = "sum"
    COUNT = "count"  # how many rows have a value: 0 for none, so it is never missing
    ANY = "any"  # true if one of them is

    @property
    def needs_time(self) -> bool:
        return self in (Combine.LAST, Combine.FIRST)


_BY_TIME = (Combine.LAST, Combine.FIRST)
_OF_NUMBERS = (*_BY_TIME, Combine.MEAN, Combine.MIN, Combine.MAX, Combine.SUM, Combine.COUNT)
COMBINES = {  # the first is the default
    FeatureKind.NUMBER: _OF_NUMBERS,
    FeatureKind.FLAG: (Combine.ANY, *_BY_TIME),
    FeatureKind.CATEGORY: _BY_TIME,
}


@dataclass(frozen=True, slots=True)
class Feature:
    """A column with bounds or categories that are public knowledge, never measured on the data.

    With `count` above 1 it stands for that many like columns, name_1 … name_count.  A raw value is
    a number; of a flag 0 or 1; of a category its place in `categories` (`category` makes such a
    feature).  `missing` is a raw value too.  `codes` (system|code) and `concepts` say where FHIR
    and OMOP sources find it.
    """

    name: str
    low: float
    high: float
    missing: float
    count: int = 1
    kind: FeatureKind = FeatureKind.NUMBER
    unit: str = ""
    categories: tuple[str, ...] = ()
    combine: Combine | None = None
    codes: tuple[str, ...] = ()
    concepts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a feature needs a name")
        if self.kind is FeatureKind.CATEGORY:
            self._check_categories()
        else:
            self._check_range()
        if not 1 <= self.count <= MOST_COLUMNS:
            raise ValueError(f"{self._named}: count must lie between 1 and {MOST_COLUMNS}")
        if self.count > 1 and (self.kind is FeatureKind.CATEGORY or self.codes or self.concepts):
            raise ValueError(f"{self._named}: a category, codes or concepts have a count of 1 only")
        if self.unit and self.kind is not FeatureKind.NUMBER:
            raise ValueError(f"{self._named}: a {self.kind.value} has no unit")
        if self.combine is not None and self.combine not in COMBINES[self.kind]:
            known = ", ".join(each.value for each in COMBINES[self.kind])
            raise ValueError(
                f"{self._named}: a {self.kind.value} cannot be combined by "
                f"{self.combine.value!r}; use one of {known}"
            )
        check_places(self._named, self.codes, self.concepts)

    def _check_range(self) -> None:
        if self.categories:
            raise ValueError(f"{self._named}: categories belong to the kind 'category'")
        check_bounds(self._named, self.low, self.high)
        if self.kind is FeatureKind.FLAG and (self.low, self.high) != (0.0, 1.0):
            raise ValueError(f"{self._named}: a flag lies between 0 and 1")
        if not self.low <= self.missing <= self.high:
            raise ValueError(f"{self._named}: missing must lie between low and high")

    def _check_categories(self) -> None:
        if not 2 <= len(self.categories) <= _MOST_CATEGORIES:
            raise ValueError(
                f"{self._named}: a category needs 2 to {_MOST_CATEGORIES} categories, got "
                f"{len(self.categories)}"
            )
        if len(set(self.categories)) < len(self.categories) or "" in self.categories:
            raise ValueError(f"{self._named}: categories must differ, and none may be empty")
        if (self.low, self.high) != (0.0, len(self.categories) - 1.0):
            raise ValueError(f"{self._named}: bounds of a category are its places in the list")
        if self.missing not in range(-1, len(self.categories)):
            raise ValueError(f"{self._named}: missing must be one of the categories, or empty")

    @property
    def _named(self) -> str:
        return f"feature {self.name!r}"

    @property
    def rule(self) -> Combine:
        """The rule by which several values of one person become one."""
        return self.combine or COMBINES[self.kind][0]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the feature's raw values, as tables have them."""
        if self.count == 1:
            return (self.name,)
        return tuple(f"{self.name}_{index}" for index in range(1, self.count + 1))

    @property
    def width(self) -> int:
        """The number of coordinates that the feature has in an encoded record."""
        return len(self.categories) or self.count

    @property
    def coordinates(self) -> tuple[str, ...]:
        """The names of the feature's coordinates in an encoded record."""
        if self.kind is not FeatureKind.CATEGORY:
            return self.columns
        return tuple(f"{self.name}={category}" for category in self.categories)

    def has_column(self, column: str) -> bool:
        """Return whether `columns` lists this column, without writing millions of names."""
        if self.count == 1:
            return column == self.name
        stem, _, number = column.rpartition("_")
        if stem != self.name or not _COLUMN_NUMBER.fullmatch(number):
            return False
        return int(number) <= self.count


def flag(
    name: str,
    *,
    missing: bool | None = None,
    count: int = 1,
    combine: Combine | None = None,
    codes: tuple[str, ...] = (),
    concepts: tuple[int, ...] = (),
) -> Feature:
    """A true-or-false feature; a missing value counts as ½ unless the study says otherwise."""
    raw = 0.5 if missing is None else float(missing)
    return Feature(
        name,
        0.0,
        1.0,
        raw,
        count,
        kind=FeatureKind.FLAG,
        combine=combine,
        codes=codes,
        concepts=concepts,
    )


def category(
    name: str,
    categories: tuple[str, ...],
    *,
    missing: str = "",
    combine: Combine | None = None,
    codes: tuple[str, ...] = (),
    concepts: tuple[int, ...] = (),
) -> Feature:
    """A feature with a list of categories; a missing value is none of them unless one is named."""
    if missing and missing not in categories:
        raise ValueError(f"feature {name!r}: missing must be one of the categories, or empty")
    return Feature(
        name,
        0.0,
        len(categories) - 1.0,
        float(categories.index(missing)) if missing else NO_CATEGORY,
        kind=FeatureKind.CATEGORY,
        categories=categories,
        combine=combine,
        codes=codes,
        concepts=concepts,
    )


def check_bounds(what: str, low: float, high: float) -> None:
    if not (isfinite(low) and isfinite(high) and low < high):
        raise ValueError(f"{what}: low must be below high, both finite")
    if max(-low, high) > FARTHEST_BOUND:
        raise ValueError(f"{what}: bounds must lie within ±{FARTHEST_BOUND:g}")


def check_places(what: str, codes: tuple[str, ...], concepts: tuple[int, ...]) -> None:
    """Refuse codes and concepts that no source can look for."""
    for code in codes:
        if not _CODE.fullmatch(code):
            raise ValueError(f"{what}: a code is system|code, as http://loinc.org|8480-6: {code!r}")
    if any(concept < 1 for concept in concepts):
        raise ValueError(f"{what}: a concept is a whole number above 0")
    if len(set(codes)) < len(codes) or len(set(concepts)) < len(concepts):
        raise ValueError(f"{what}: a code or concept is listed twice")
