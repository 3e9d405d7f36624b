"""The entries of a FHIR bundle: resources, and deletions of resources.

A deletion is one more version of its resource, without content.  Histories have them, and so have
the bundles in which a bulk export lists what is gone since the one before.
"""

from collections.abc import Iterator

from silomix_client.data.clinical.fhir.resources import Place, Resource, items, name_of
from silomix_client.errors import BadRecords

_HISTORY = "/_history/"
_MARK = {"_deleted": True}


def entries(description: str, where: str, bundle: Resource) -> Iterator[Place]:
    """Read the resources of a bundle.

    Each gets its fullUrl as _fullUrl, and what tells its versions apart in meta.
    """
    for number, entry in enumerate(items(bundle.get("entry")), start=1):
        if not isinstance(entry, dict):
            continue
        inner, place = entry.get("resource"), f"{where}, entry {number}"
        if _part(entry, "request").get("method") == "DELETE":
            inner = _deleted(entry)
            if inner is None:
                raise BadRecords(f"{description}: {place}: a deletion that does not say of what")
        if not isinstance(inner, dict) or not isinstance(inner.get("resourceType"), str):
            continue  # a link or an outcome
        if isinstance(entry.get("fullUrl"), str):
            inner = inner | {"_fullUrl": entry["fullUrl"]}
        meta = _answered(entry) | _part(inner, "meta")
        if is_deleted(inner):
            meta = _listed(bundle) | meta
        yield f"{place}, {name_of(inner)}", inner | {"meta": meta}


def is_deleted(resource: Resource) -> bool:
    return resource.get("_deleted") is True


def _deleted(entry: Resource) -> Resource | None:
    """What a deletion leaves of a resource: its type and id, perhaps its version."""
    inner = _part(entry, "resource")
    if isinstance(inner.get("resourceType"), str) and isinstance(inner.get("id"), str):
        return {key: inner[key] for key in ("resourceType", "id", "meta") if key in inner} | _MARK
    for address in (_part(entry, "request").get("url"), entry.get("fullUrl")):
        path, _, version = str(address).partition(_HISTORY)
        *_, kind, name = ["", "", *path.split("/")]
        if kind[:1].isupper() and name and "?" not in path:
            meta = {"versionId": version} if version else {}
            return {"resourceType": kind, "id": name, "meta": meta} | _MARK
    return None


def _answered(entry: Resource) -> Resource:
    """The time and the number that a history gives this version, as in meta."""
    response = _part(entry, "response")
    number = str(response.get("etag", "")).removeprefix("W/").strip('"')
    found = {"lastUpdated": response.get("lastModified"), "versionId": number}
    return {key: value for key, value in found.items() if value}


def _listed(bundle: Resource) -> Resource:
    """The time at which a list of deletions was made, as in meta.

    A bulk export has nothing that it lists as deleted, so what is older is gone; the day of a
    history says nothing of its entries.
    """
    made = _part(bundle, "meta").get("lastUpdated")
    return {} if bundle.get("type") == "history" or not made else {"lastUpdated": made}


def _part(resource: Resource, key: str) -> Resource:
    found = resource.get(key)
    return found if isinstance(found, dict) else {}
