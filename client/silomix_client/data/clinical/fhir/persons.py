"""Who is who in a FHIR export: which Patients are one person, and whom a reference means."""

from silomix_client.data.clinical.fhir.resources import Place, Resource, dicts
from silomix_client.errors import BadRecords

_SAME_PERSON = frozenset({"replaced-by", "replaces", "refer", "seealso"})


class Persons:
    """Which Patients are one person, and which of them a reference means.

    Patients that are linked to the same third one are the same, even where that one is not here.
    """

    def __init__(self, description: str, found: list[Place], newest: list[Place]) -> None:
        """Index all versions that were found; links are those of the newest.

        References may name any version.  A Patient that is not among the newest was deleted: it is
        nobody, but still makes two the same.
        """
        self._description = description
        self._by_url: dict[str, str] = {}
        self._by_identifier: dict[str, set[str]] = {}
        self._known: set[str] = set()
        for where, each in found:
            if "_fullUrl" in each:
                self._by_url[each["_fullUrl"]] = self._key(where, each)
        there = {self._key(*place) for place in _patients(newest)}
        for where, each in _patients(found):
            if (key := self._key(where, each)) in there:
                self._add_patient(key, each)
        self._same = {identifier: identifier for identifier in self._known}
        for where, each in newest:
            for link in self._links(where, each):
                self._follow(where, each, link)

    def of(self, where: str, patient: Resource) -> str:
        return self._root(self._key(where, patient))

    def referred(self, reference: object) -> str | None:
        text = reference.get("reference") if isinstance(reference, dict) else None
        identifier = self._identifier(str(text)) if text is not None else ""
        return self._root(identifier) if identifier in self._known else None

    def _key(self, where: str, resource: Resource) -> str:
        """The key of a Patient or Person; one without any identifier is refused.

        Two of them are not one person, nor are they certainly two.
        """
        kind, identifier = resource["resourceType"], resource.get("id")
        if identifier:
            return self._identifier(f"{kind}/{identifier}")
        if "_fullUrl" in resource:
            return self._identifier(resource["_fullUrl"])
        raise self._refusal(where, f"a {kind} with neither an id nor a fullUrl")

    def _add_patient(self, key: str, patient: Resource) -> None:
        self._known.add(key)
        for each in filter(None, map(_business, dicts(patient.get("identifier")))):
            self._by_identifier.setdefault(each, set()).add(key)

    def _links(self, where: str, resource: Resource) -> list[Resource]:
        """The links of a resource, or a refusal: one left unread would make two persons of one."""
        links = resource.get("link") or []
        if not isinstance(links, list) or len(dicts(links)) < len(links):
            raise self._refusal(where, f"link: not a list of links: {links!r:.40}")
        return links

    def _follow(self, where: str, resource: Resource, link: Resource) -> None:
        if resource["resourceType"] == "Person":
            self._join(where, self._key(where, resource), link.get("target"))
            return
        kind = link.get("type")
        if not isinstance(kind, str):
            raise self._refusal(where, f"a link of no type: {kind!r:.40}")
        if kind in _SAME_PERSON:
            self._join(where, self._key(where, resource), link.get("other"))

    def _join(self, where: str, key: str, reference: object) -> None:
        other = self._target(where, key, reference if isinstance(reference, dict) else {})
        for each in (key, other):
            self._same.setdefault(each, each)
        first, second = sorted((self._root(key), self._root(other)))
        self._same[second] = first

    def _target(self, where: str, key: str, reference: Resource) -> str:
        """Whom a link means, by reference or by an identifier that one Patient alone has."""
        text = reference.get("reference")
        if isinstance(text, str) and text:
            return key + text if text.startswith("#") else self._identifier(text)
        identifier = reference.get("identifier")
        named = _business(identifier) if isinstance(identifier, dict) else ""
        having = self._by_identifier.get(named, set())
        if len(having) != 1:
            counted = f"; {len(having)} Patients have {named!r:.80}" if named else ""
            raise self._refusal(where, f"a link without a reference to a Patient{counted}")
        return next(iter(having))

    def _identifier(self, reference: str) -> str:
        """The key in Patient/7, an address that ends so, perhaps with a version, or urn:uuid:…"""
        if reference in self._by_url:
            return self._by_url[reference]
        parts = reference.partition("/_history/")[0].split("/")[-2:]
        if len(parts) < 2 or parts[0] not in ("Patient", "Person", "RelatedPerson"):
            return reference
        return parts[1] if parts[0] == "Patient" else "/".join(parts)

    def _root(self, identifier: str) -> str:
        while self._same[identifier] != identifier:
            identifier = self._same[identifier]
        return identifier

    def _refusal(self, where: str, problem: str) -> BadRecords:
        return BadRecords(f"{self._description}: {where}: {problem}")


def _patients(places: list[Place]) -> list[Place]:
    return [place for place in places if place[1]["resourceType"] == "Patient"]


def _business(identifier: Resource) -> str:
    """An Identifier as one text, "" if it has no value."""
    value = identifier.get("value")
    return f"{identifier.get('system', '')}|{value}" if value else ""
