"""Tokens by VOPRF(ristretto255, SHA-512), mode 1 of RFC 9497, on libsodium's group.

Each round has a key of its own, derived as the RFC says (DeriveKeyPair) from one seed with
info = label ‖ study ‖ round.

What is secret (a round's key, the scalar of a proof, a nonce, a blinding, what is unblinded) is
bytes here, and goes through libsodium's ristretto255, hashlib's SHA-512 and `compare_digest` only:
none of them branches on it or looks something up by it.  Python copies and joins such bytes, whose
lengths are public; it does no arithmetic with them, and branches on one only where libsodium found
a zero, which happens once in 2²⁵² times.  Whether a proof holds is not secret.

libsodium is the shared library in pyzmq's wheel: why, docs/decisions/0002-dependencies.md.
"""

import secrets
from collections.abc import Callable
from ctypes import PyDLL, c_char_p, c_int, create_string_buffer
from dataclasses import dataclass, field
from hashlib import sha512
from hmac import compare_digest
from importlib.util import find_spec
from pathlib import Path

from silomix_core.study.study import StudyId

from silomix_protocol.keys import number
from silomix_protocol.rounds.tokens import COIN_BYTES, NONCE_BYTES, RefusedToken, Token

_INPUT = b"silomix/v1/token\0"
_KEY_INFO = b"silomix/v1/token-key\0"
_KEPT = 128  # derived keys kept at hand: two stretches of rounds
_ELEMENT_BYTES, _SCALAR_BYTES, _UNIFORM_BYTES = 32, 32, 64
_IDENTITY, _ZERO = bytes(_ELEMENT_BYTES), bytes(_SCALAR_BYTES)
_CONTEXT = b"OPRFV1-\x01-ristretto255-SHA512"  # RFC 9497, 3.1 and 4.1


class RistrettoIssuer:
    def __init__(self, seed: bytes, study: StudyId) -> None:
        self._seed = seed
        self._study = study
        self._pairs: dict[int, KeyPair] = {}

    def public_key(self, round_number: int) -> bytes:
        return self._pair(round_number).public

    def evaluate(self, round_number: int, blinded: bytes) -> bytes:
        try:
            return blind_evaluate(self._pair(round_number), blinded)
        except NotInGroup as error:
            raise RefusedToken("not a blinded element") from error

    def valid(self, round_number: int, token: Token) -> bool:
        expected = evaluate(self._pair(round_number), _INPUT + token.nonce)
        return compare_digest(expected, token.output)

    def _pair(self, round_number: int) -> "KeyPair":
        pair = self._pairs.get(round_number)
        if pair is None:
            if len(self._pairs) >= _KEPT:
                del self._pairs[min(self._pairs)]
            pair = derive_key_pair(self._seed, _KEY_INFO + self._study + number(round_number))
            self._pairs[round_number] = pair
        return pair


class RistrettoToken:
    """A token on its way, made from uniform bytes: the same bytes give the same token."""

    def __init__(self, coins: bytes) -> None:
        if len(coins) != COIN_BYTES:
            raise RefusedToken(f"a token is made of {COIN_BYTES} bytes")
        self._nonce = coins[:NONCE_BYTES]
        try:
            self._blind = scalar_of(coins[NONCE_BYTES:])
            self.blinded = blind(_INPUT + self._nonce, self._blind)
        except NotInGroup as error:
            raise RefusedToken("these bytes blind nothing") from error

    def finish(self, evaluated: bytes, public_key: bytes) -> Token:
        element, proof = evaluated[:_ELEMENT_BYTES], evaluated[_ELEMENT_BYTES:]
        try:
            check_proof(public_key, self.blinded, element, proof)
            return Token(self._nonce, finalize(_INPUT + self._nonce, self._blind, element))
        except NotInGroup as error:
            raise RefusedToken("the server's proof for a token does not hold") from error


# RFC 9497 ----------------------------------------------------------------------------------------


class NotInGroup(ValueError):
    """The bytes are no element or scalar in its one encoding, a neutral one, or no valid proof."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    secret: bytes = field(repr=False)
    public: bytes


def derive_key_pair(seed: bytes, info: bytes) -> KeyPair:
    """The key pair from a seed and `info`: DeriveKeyPair, 3.2.1."""
    for counter in range(256):
        derived = seed + _framed(info) + bytes([counter])
        secret = _hash_to_scalar(derived, b"DeriveKeyPair" + _CONTEXT)
        if not compare_digest(secret, _ZERO):
            return KeyPair(secret, _times_generator(secret))
    raise NotInGroup("this seed gives no key")


def blind(message: bytes, scalar: bytes) -> bytes:
    """The message's element, blinded with this scalar: Blind, 3.3.2."""
    return _times(scalar, _hash_to_group(message))


def blind_evaluate(pair: KeyPair, blinded: bytes, scalar: bytes | None = None) -> bytes:
    """The evaluated element and its proof, by a fresh scalar or this one: BlindEvaluate, 3.3.2."""
    _check_element(blinded)
    evaluated = _times(pair.secret, blinded)
    weight = _composite_weight(pair.public, blinded, evaluated)
    composite = _times(weight, blinded)
    scalar = scalar_of(secrets.token_bytes(_UNIFORM_BYTES)) if scalar is None else scalar
    commitments = _times_generator(scalar), _times(scalar, composite)
    challenge = _challenge(pair.public, composite, _times(pair.secret, composite), *commitments)
    return evaluated + challenge + _minus(scalar, _product(challenge, pair.secret))


def check_proof(public_key: bytes, blinded: bytes, evaluated: bytes, proof: bytes) -> None:
    """Raise NotInGroup unless the public key's secret made `evaluated`: VerifyProof, 2.2.2."""
    challenge, response = proof[:_SCALAR_BYTES], proof[_SCALAR_BYTES:]
    for element in (public_key, blinded, evaluated):
        _check_element(element)
    for scalar in (challenge, response):
        _check_scalar(scalar)
    weight = _composite_weight(public_key, blinded, evaluated)
    composite, image = _times(weight, blinded), _times(weight, evaluated)
    commitments = (
        _sum(_times_generator(response), _times(challenge, public_key)),
        _sum(_times(response, composite), _times(challenge, image)),
    )
    expected = _challenge(public_key, composite, image, *commitments)
    if not compare_digest(expected, challenge):
        raise NotInGroup("the proof does not hold")


def finalize(message: bytes, scalar: bytes, evaluated: bytes) -> bytes:
    """The output for a message, once the proof was checked: Finalize, 3.3.2."""
    return _output(message, _times(_inverse(scalar), evaluated))


def evaluate(pair: KeyPair, message: bytes) -> bytes:
    """What Finalize gives for this message, from the key alone: Evaluate, 3.3.1."""
    return _output(message, _times(pair.secret, _hash_to_group(message)))


def scalar_of(uniform: bytes) -> bytes:
    """The scalar of 64 uniform bytes, modulo the group's order: uniform up to 2⁻²⁵⁹."""
    return _reduced(uniform)


def _composite_weight(public_key: bytes, blinded: bytes, evaluated: bytes) -> bytes:
    """The weight of the one pair in a batch: ComputeComposites and its fast form, 2.2.1."""
    seed = sha512(_framed(public_key) + _framed(b"Seed-" + _CONTEXT)).digest()
    pair = b"\0\0" + _framed(blinded) + _framed(evaluated)
    return _hash_to_scalar(_framed(seed) + pair + b"Composite")


def _challenge(*elements: bytes) -> bytes:
    return _hash_to_scalar(b"".join(map(_framed, elements)) + b"Challenge")


def _output(message: bytes, element: bytes) -> bytes:
    return sha512(_framed(message) + _framed(element) + b"Finalize").digest()


def _hash_to_group(message: bytes) -> bytes:
    element = _from_hash(_expanded(message, b"HashToGroup-" + _CONTEXT))
    _check_element(element)
    return element


def _hash_to_scalar(message: bytes, label: bytes = b"HashToScalar-" + _CONTEXT) -> bytes:
    return scalar_of(_expanded(message, label))


def _expanded(message: bytes, label: bytes) -> bytes:
    """expand_message_xmd of RFC 9380, 5.3.1, with SHA-512, for its 64 bytes: one block."""
    suffix = label + bytes([len(label)])
    length = _UNIFORM_BYTES.to_bytes(2, "big")
    first = sha512(bytes(128) + message + length + b"\0" + suffix).digest()
    return sha512(first + b"\x01" + suffix).digest()


def _framed(part: bytes) -> bytes:
    return len(part).to_bytes(2, "big") + part


def _check_element(element: bytes) -> None:
    """Refuse the neutral element; libsodium refuses what is no element when it computes with it."""
    if compare_digest(element, _IDENTITY):
        raise NotInGroup("the neutral element")


def _check_scalar(scalar: bytes) -> None:
    if _reduced(scalar + bytes(_UNIFORM_BYTES - _SCALAR_BYTES)) != scalar:  # a proof's: public
        raise NotInGroup("not below the group's order")


# libsodium ---------------------------------------------------------------------------------------


def _library() -> PyDLL:
    """Load libsodium.  Calls keep the interpreter's lock: giving it away would take longer."""
    package = find_spec("zmq")
    origin = package.origin if package is not None else None
    folder = Path(origin).parents[1] / "pyzmq.libs" if origin is not None else Path("pyzmq.libs")
    places = sorted(folder.glob("libsodium*.so*"))
    if len(places) != 1:
        raise ImportError(f"no libsodium in {folder}: install pyzmq from its wheel")
    library = PyDLL(str(places[0]))
    if library.sodium_init() < 0:
        raise ImportError(f"{places[0]} does not start")
    return library


def _function(name: str, *lengths: int, fails: bool = True) -> Callable[..., bytes]:
    """A function of libsodium: from byte strings of these lengths to 32 bytes, or NotInGroup."""
    function = getattr(_SODIUM, f"crypto_{name}")
    function.argtypes = [c_char_p] * (1 + len(lengths))
    function.restype = c_int if fails else None

    def call(*arguments: bytes) -> bytes:
        if tuple(map(len, arguments)) != lengths:
            raise NotInGroup("an element and a scalar have 32 bytes")
        result = create_string_buffer(_ELEMENT_BYTES)
        if function(result, *arguments):
            raise NotInGroup("not an element, or the neutral one")
        return result.raw

    return call


_SODIUM = _library()
_from_hash = _function("core_ristretto255_from_hash", _UNIFORM_BYTES)
_sum = _function("core_ristretto255_add", _ELEMENT_BYTES, _ELEMENT_BYTES)
_reduced = _function("core_ristretto255_scalar_reduce", _UNIFORM_BYTES, fails=False)
_minus = _function("core_ristretto255_scalar_sub", _SCALAR_BYTES, _SCALAR_BYTES, fails=False)
_product = _function("core_ristretto255_scalar_mul", _SCALAR_BYTES, _SCALAR_BYTES, fails=False)
_inverse = _function("core_ristretto255_scalar_invert", _SCALAR_BYTES)
_times = _function("scalarmult_ristretto255", _SCALAR_BYTES, _ELEMENT_BYTES)
_times_generator = _function("scalarmult_ristretto255_base", _SCALAR_BYTES)
