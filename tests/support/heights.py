"""Heights of silos' ledgers, for silos that are played and have none."""

from hashlib import sha256

from silomix_lab.consortium.create import Consortium
from silomix_protocol.keys import SigningKey
from silomix_protocol.rounds.heights import Height, sign_height


def some_height(
    made: Consortium, silo: str, entries: int = 1, *, restored_ms: int = 0, story: str = ""
) -> Height:
    """The height of a ledger of so many entries: always the same one, unless its story is not."""
    key = SigningKey.load(made.folder / silo / "sign.key")
    mark = sha256(f"{silo} {restored_ms} {entries} {story}".encode()).digest()
    return sign_height(silo, (restored_ms, entries), mark, key)
