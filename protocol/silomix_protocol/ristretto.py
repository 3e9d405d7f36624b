"""Tokens by VOPRF(ristretto255, SHA-512) of RFC 9497, from the package `voprf`.

The package lacks the partially oblivious mode, so a round is bound by a key of its own, derived
as the RFC says (DeriveKeyPair) from one seed with info = label ‖ study ‖ round.
"""

import secrets
from hmac import compare_digest

from silomix_core.study import StudyId
from voprf import ristretto

from silomix_protocol.keys import number
from silomix_protocol.tokens import RefusedToken, Token

_INPUT = b"silomix/v1/token\0"
_KEY_INFO = b"silomix/v1/token-key\0"
_KEPT = 128  # evaluators at hand: two stretches of rounds
_ELEMENT_BYTES, _PROOF_BYTES = 32, 64


class RistrettoIssuer:
    def __init__(self, seed: bytes, study: StudyId) -> None:
        self._seed = seed
        self._study = study
        self._evaluators: dict[int, ristretto.Evaluator] = {}

    def public_key(self, round_number: int) -> bytes:
        return self._evaluator(round_number).public_key.serialize()

    def evaluate(self, round_number: int, blinded: bytes) -> bytes:
        try:
            element = ristretto.BlindedInput.deserialize(blinded)
            answer = self._evaluator(round_number).evaluate(element).serialize()
        except ValueError as error:
            raise RefusedToken("not a blinded element") from error
        return answer[_PROOF_BYTES:] + answer[:_PROOF_BYTES]  # the package puts the proof first

    def valid(self, round_number: int, token: Token) -> bool:
        expected = self._evaluator(round_number).evaluate_known_input(_INPUT + token.nonce)
        return compare_digest(expected, token.output)

    def _evaluator(self, round_number: int) -> ristretto.Evaluator:
        known = self._evaluators.get(round_number)
        if known is None:
            if len(self._evaluators) >= _KEPT:
                del self._evaluators[min(self._evaluators)]
            info = _KEY_INFO + self._study + number(round_number)
            known = ristretto.Evaluator.from_seed(self._seed, info)
            self._evaluators[round_number] = known
        return known


class RistrettoToken:
    def __init__(self) -> None:
        self._nonce = secrets.token_bytes(32)
        self._client, blinded = ristretto.Client.blind(_INPUT + self._nonce)
        self.blinded = blinded.serialize()

    def finish(self, evaluated: bytes, public_key: bytes) -> Token:
        try:
            element, proof = evaluated[:_ELEMENT_BYTES], evaluated[_ELEMENT_BYTES:]
            output = ristretto.VerifiableOutput.deserialize(proof + element)
            key = ristretto.PublicKey.deserialize(public_key)
            return Token(self._nonce, self._client.finalize(output, key))
        except ValueError as error:
            raise RefusedToken("the server's proof for a token does not hold") from error
