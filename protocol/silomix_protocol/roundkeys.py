"""A mix's keys for one attempt of one round, and the list in which it vouches for them.

A descriptor names fingerprints; the keys themselves travel with the round; the list, signed once
for a stretch of rounds, is what makes them that mix's.
"""

from hashlib import sha256

from silomix_core.study import Mix, Study
from silomix_proto import round_pb2

from silomix_protocol.descriptor import Descriptor
from silomix_protocol.keys import SEAL_PUBLIC_BYTES, SigningKey, framed, number, verify

LONGEST_STRETCH = 64  # rounds whose keys and tokens are exchanged in one go


class RefusedKeys(ValueError):
    """Keys that the descriptor does not name, or that the mix did not vouch for."""


def fingerprint(keys: round_pb2.RoundKeys) -> bytes:
    return sha256(framed("round-keys", keys.seal, keys.release)).digest()


def sign_list(
    study: Study,
    attempt: int,
    first_round: int,
    keys: list[round_pb2.RoundKeys],
    sign_key: SigningKey,
) -> round_pb2.KeyList:
    """What a mix states about its keys for the rounds from `first_round` on."""
    listed = round_pb2.KeyList(
        attempt=attempt, first_round=first_round, keys=[fingerprint(each) for each in keys]
    )
    listed.signature = sign_key.sign("key-list", *_parts(study, listed))
    return listed


class KeyBook:
    """Every fingerprint that the mixes of a study vouched for and that may still be used."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self._known: dict[tuple[int, int], tuple[bytes, ...]] = {}  # (round, attempt): by mix

    def add(self, lists: list[round_pb2.KeyList]) -> None:
        """Lists of every mix, first mix first, all for the same rounds; older ones are dropped."""
        if len(lists) != len(self._study.mixes):
            raise RefusedKeys("one key list of every mix is needed")
        attempt, first, length = lists[0].attempt, lists[0].first_round, len(lists[0].keys)
        if not 1 <= length <= LONGEST_STRETCH:
            raise RefusedKeys(f"a key list covers 1 to {LONGEST_STRETCH} rounds")
        for mix, listed in zip(self._study.mixes, lists, strict=True):
            if (listed.attempt, listed.first_round, len(listed.keys)) != (attempt, first, length):
                raise RefusedKeys("the key lists are not for the same rounds")
            check_list(listed, self._study, mix)
        self._known = {key: keys for key, keys in self._known.items() if key[0] >= first}
        for offset in range(length):
            named = tuple(listed.keys[offset] for listed in lists)
            self._known[first + offset, attempt] = named

    def check(self, descriptor: Descriptor, keys: list[round_pb2.RoundKeys]) -> None:
        """Raise unless these are the keys of the descriptor, and every mix vouched for its own."""
        given = tuple(fingerprint(each) for each in keys)
        if given != descriptor.mix_keys:
            raise RefusedKeys("the mix keys are not those that the descriptor names")
        if self._known.get((descriptor.round, descriptor.attempt)) != given:
            raise RefusedKeys("the mixes did not vouch for the keys of this round")
        check_lengths(keys, self._study)


def check_list(listed: round_pb2.KeyList, study: Study, mix: Mix) -> None:
    """Raise ForgedSignature unless `mix` signed the list."""
    verify(mix.sign_key, listed.signature, "key-list", *_parts(study, listed))


def check_lengths(keys: list[round_pb2.RoundKeys], study: Study) -> None:
    release = SEAL_PUBLIC_BYTES if study.batching.gate else 0
    if any((len(each.seal), len(each.release)) != (SEAL_PUBLIC_BYTES, release) for each in keys):
        raise RefusedKeys("a mix key has another length than the study asks for")


def _parts(study: Study, listed: round_pb2.KeyList) -> tuple[bytes, ...]:
    if any(len(each) != 32 for each in listed.keys):
        raise RefusedKeys("a fingerprint has 32 bytes")
    numbers = number(listed.attempt), number(listed.first_round)
    return study.identity, *numbers, b"".join(listed.keys)
