"""A mix's keys for one attempt of one round, and the list in which it vouches for them.

A descriptor names fingerprints; the keys themselves travel with the round; the list, signed once
for a stretch of rounds, shows that the keys are that mix's.
"""

from hashlib import sha256

from silomix_core.study.study import Mix, Study
from silomix_proto import round_pb2

from silomix_protocol.keys import SEAL_PUBLIC_BYTES, SigningKey, framed, number, verify
from silomix_protocol.rounds.descriptor import Descriptor

LONGEST_STRETCH = 64  # rounds whose keys and tokens are exchanged in one go
_MOST_KNOWN = 4 * LONGEST_STRETCH  # attempts of rounds to come whose keys are remembered


class RefusedKeys(ValueError):
    """The descriptor does not name the keys, or the mix did not vouch for them."""


def fingerprint(keys: round_pb2.RoundKeys) -> bytes:
    return sha256(framed("round-keys", keys.seal, keys.release)).digest()


def sign_list(
    study: Study,
    attempt: int,
    first_round: int,
    keys: list[round_pb2.RoundKeys],
    sign_key: SigningKey,
) -> round_pb2.KeyList:
    """The list in which a mix vouches for its keys for the rounds from `first_round` on."""
    listed = round_pb2.KeyList(
        attempt=attempt, first_round=first_round, keys=[fingerprint(each) for each in keys]
    )
    listed.signature = sign_key.sign("key-list", *_parts(study, listed))
    return listed


class KeyBook:
    """Every fingerprint that the mixes of a study vouched for and that may still be used."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self._known: dict[tuple[int, int], tuple[bytes, ...]] = {}  # (round, attempt): one per mix

    def add(self, lists: list[round_pb2.KeyList]) -> None:
        """Add one list per mix, in order, all for the same rounds; drop keys of earlier rounds."""
        if len(lists) != len(self._study.mixes):
            raise RefusedKeys("one key list of every mix is needed")
        attempt, first, length = lists[0].attempt, lists[0].first_round, len(lists[0].keys)
        if not 1 <= length <= LONGEST_STRETCH:
            raise RefusedKeys(f"a key list covers 1 to {LONGEST_STRETCH} rounds")
        for mix, listed in zip(self._study.mixes, lists, strict=True):
            if (listed.attempt, listed.first_round, len(listed.keys)) != (attempt, first, length):
                raise RefusedKeys("the key lists are not for the same rounds")
            check_list(listed, self._study, mix)
        known = {key: keys for key, keys in self._known.items() if key[0] >= first}
        for offset in range(length):
            named = tuple(listed.keys[offset] for listed in lists)
            known[first + offset, attempt] = named
        if len(known) > _MOST_KNOWN:
            raise RefusedKeys(f"keys for more than {_MOST_KNOWN} attempts of rounds to come")
        self._known = known

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
