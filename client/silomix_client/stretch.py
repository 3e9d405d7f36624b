"""A stretch of rounds at a silo: the mixes' keys for them, and a token for each.

Before the first of its rounds the server announces the stretch.  The silo takes the key lists that
the mixes signed, and asks for tokens in one go: so that when it asks tells nothing about when it
answers.  A blinded token that was asked for and did not come is asked for again with the same
blinding: the server evaluates one for each round and no other.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from silomix_core.study import Study
from silomix_proto import channel_pb2
from silomix_protocol import logs, tokens
from silomix_protocol.keys import SigningKey
from silomix_protocol.roundkeys import KeyBook
from silomix_protocol.statements import sign_token_request
from silomix_protocol.tokens import BlindedToken

from silomix_client.errors import RefusedQuery
from silomix_client.ledger import Ledger
from silomix_client.wallet import HeldToken

_TOKEN_KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class _Request:
    """A token request on its way: the token keys of its rounds, and the rounds it asks for."""

    first_round: int
    keys: tuple[bytes, ...]
    wanted: frozenset[int]


class Stretches:
    """What a silo knows of the rounds to come, over all leases of one study."""

    def __init__(self, study: Study, ledger: Ledger, sign_key: SigningKey) -> None:
        self._study, self._ledger, self._sign_key = study, ledger, sign_key
        self.book = KeyBook(study)
        self._blinded: dict[int, BlindedToken] = {}
        self._requests: deque[_Request] = deque()  # oldest first, as they are answered

    def start(self) -> None:
        """A new connection: what was asked on the last one is not answered on this one."""
        self._requests.clear()

    def awaits_token(self, round_number: int) -> bool:
        """Whether a token for this round was asked for and may still come."""
        return any(round_number in request.wanted for request in self._requests)

    def open(self, stretch: channel_pb2.StretchOpened) -> channel_pb2.TokenRequest | None:
        """Take the keys of a stretch; the request for its tokens, even if none is wanted."""
        lists = list(stretch.lists)
        length = len(lists[0].keys) if lists else 0
        last = stretch.first_round + length - 1
        if any((each.first_round, each.attempt) != (stretch.first_round, 1) for each in lists):
            raise RefusedQuery("the key lists are not for this stretch")
        if not 1 <= stretch.first_round <= last <= self._study.rounds:
            raise RefusedQuery("a stretch is of rounds of the study")
        self._check_token_keys(stretch.token_keys, length)
        self.book.add(lists)
        if not self._study.batching.tokens:
            return None
        return self._request(stretch.first_round, tuple(stretch.token_keys))

    def take(self, reply: channel_pb2.TokenReply) -> None:
        """Store the tokens that the server evaluated, if it proves each of them."""
        if not self._requests:
            raise RefusedQuery("tokens that were not asked for")
        request = self._requests.popleft()
        shape = (request.first_round, len(request.keys))
        if (reply.first_round, len(reply.evaluated)) != shape:
            raise RefusedQuery("tokens of other rounds than were asked for")
        held = {}
        for offset, evaluated in enumerate(reply.evaluated):
            number, key = request.first_round + offset, request.keys[offset]
            if not evaluated:
                continue
            if number not in request.wanted:
                raise RefusedQuery("a token that was not asked for")
            held[number] = HeldToken(key, self._blinded[number].finish(evaluated, key))
        if held:
            self._ledger.wallet.keep(self._study.identity, held)
        for number in held:
            del self._blinded[number]
        if refused := len(request.wanted) - len(held):
            logs.warning("tokens_refused", first=request.first_round, rounds=refused)

    def _check_token_keys(self, keys: Sequence[bytes], length: int) -> None:
        expected = length if self._study.batching.tokens else 0
        if [len(key) for key in keys] != [_TOKEN_KEY_BYTES] * expected:
            raise RefusedQuery("a stretch has one token key for each round, or none at all")

    def _request(self, first: int, keys: tuple[bytes, ...]) -> channel_pb2.TokenRequest:
        rounds = range(first, first + len(keys))
        have = self._ledger.wallet.rounds(self._study.identity)
        answered = self._ledger.last_round(self._study.identity)
        wanted = [
            number
            for number in rounds
            if number > answered and number not in have and not self.awaits_token(number)
        ]
        self._requests.append(_Request(first, keys, frozenset(wanted)))
        self._blinded = {
            number: blinded for number, blinded in self._blinded.items() if number > answered
        }
        for number in wanted:
            if number not in self._blinded:
                self._blinded[number] = tokens.blind()
        blinded = [self._blinded[each].blinded if each in wanted else b"" for each in rounds]
        return sign_token_request(first, blinded, self._study, self._sign_key)
