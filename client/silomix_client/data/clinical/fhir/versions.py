"""The newest version of a resource that an export has several times.

Bundles overlap and servers export histories: what was corrected, withdrawn or deleted later must
not count beside its correction.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

Content = TypeVar("Content")


@dataclass(frozen=True, slots=True)
class Version(Generic[Content]):
    """A version of a resource; `content` is as much of the resource as matters here."""

    where: str
    updated: datetime | None
    number: int | None
    content: Content

    def is_newer_than(self, other: "Version[Content]") -> bool:
        if self.updated and other.updated and self.updated != other.updated:
            return self.updated > other.updated
        if self.number is None or other.number is None:
            return False
        return self.number > other.number


def key_of(resource: dict[str, Any]) -> str | None:
    """The key that all versions of a resource share; None if it can have no other version."""
    if resource.get("id"):
        return f"{resource['resourceType']}/{resource['id']}"
    return resource.get("_fullUrl")


def version_of(where: str, resource: dict[str, Any], content: Content) -> Version[Content]:
    meta = resource.get("meta")
    told = meta if isinstance(meta, dict) else {}
    number = str(told.get("versionId", ""))
    whole = int(number) if number.isascii() and number.isdigit() and len(number) < 20 else None
    return Version(where, _instant(told.get("lastUpdated")), whole, content)


def newest(versions: Sequence[Version[Content]]) -> Version[Content] | None:
    """The newest version; None if it cannot be told which that is, and makes a difference."""
    left = [
        each for each in versions if not any(other.is_newer_than(each) for other in versions)
    ]  # several where nothing tells them apart, none where dates and numbers contradict each other
    if not left or any(each.content != left[0].content for each in left):
        return None
    return left[0]


def _instant(text: object) -> datetime | None:
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
