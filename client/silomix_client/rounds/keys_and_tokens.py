"""A stretch of rounds at a silo: the mixes' keys for them, and a token for each.

Before the first of its rounds the server announces the stretch.  The silo takes the key lists that
the mixes signed, and asks for tokens in one go: so that when it asks tells nothing about when it
answers.  The server evaluates one blinded token for each round and no other, so nonce and blinding
are derived from the approval's secret, the round and its token key: a silo that asks again after
any restart, or after its folder was put back, sends the same elements and gets the same tokens.
Another key gives elements that nobody without the secret can tell from another silo's.
"""

import hmac
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from silomix_core.study.study import Study
from silomix_proto import channel_pb2
from silomix_protocol.host import logs
from silomix_protocol.keys import SigningKey, framed, number
from silomix_protocol.rounds import tokens
from silomix_protocol.rounds.round_keys import LONGEST_STRETCH, KeyBook
from silomix_protocol.rounds.statements import sign_token_request
from silomix_protocol.rounds.tokens import BlindedToken

from silomix_client.errors import NotApproved, RefusedQuery
from silomix_client.ledger.ledger import Ledger
from silomix_client.ledger.token_store import HeldToken
from silomix_client.random_stream import derived_key, stream_of

_TOKEN_KEY_BYTES = 32
_MOST_PENDING = 4  # stretches whose tokens were asked for; a coordinator gives them before the next
_MOST_AHEAD = 4 * LONGEST_STRETCH  # rounds to come whose tokens are held or asked for


@dataclass(frozen=True, slots=True)
class _Request:
    """A token request on its way: the token keys of its rounds, and what it asks for by round."""

    first_round: int
    keys: tuple[bytes, ...]
    blinded: Mapping[int, BlindedToken]


class KeysAndTokens:
    """The mixes' keys and the tokens for rounds to come, over all leases of one study."""

    def __init__(self, study: Study, ledger: Ledger, sign_key: SigningKey) -> None:
        self._study, self._ledger, self._sign_key = study, ledger, sign_key
        self._account = ledger.account(study)
        self.book = KeyBook(study)
        self._requests: deque[_Request] = deque()  # oldest first, as they are answered

    def start(self) -> None:
        """Begin a connection: what was asked on the last one is not answered on this one."""
        self._requests.clear()

    def awaits_token(self, round_number: int) -> bool:
        """Whether a token for this round was asked for and may still come."""
        return any(round_number in request.blinded for request in self._requests)

    def open(self, stretch: channel_pb2.StretchOpened) -> channel_pb2.TokenRequest | None:
        """Take the keys of a stretch and return the request for its tokens, even if it wants none.

        None in a study without tokens.
        """
        if len(stretch.lists) != len(self._study.mixes):  # before anything is made of them
            raise RefusedQuery("a stretch has one key list of every mix")
        if len(self._requests) >= _MOST_PENDING:
            raise RefusedQuery(f"{_MOST_PENDING} stretches were announced and no tokens came")
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
            place, key = request.first_round + offset, request.keys[offset]
            if not evaluated:
                continue
            if place not in request.blinded:
                raise RefusedQuery("a token that was not asked for")
            held[place] = HeldToken(key, request.blinded[place].finish(evaluated, key))
        if held:
            self._account.keep_tokens(held)
        if refused := len(request.blinded) - len(held):
            logs.warning("tokens_refused", first=request.first_round, rounds=refused)

    def _check_token_keys(self, keys: Sequence[bytes], length: int) -> None:
        expected = length if self._study.batching.tokens else 0
        if len(keys) != expected or [len(key) for key in keys] != [_TOKEN_KEY_BYTES] * expected:
            raise RefusedQuery("a stretch has one token key for each round, or none at all")

    def _request(self, first: int, keys: tuple[bytes, ...]) -> channel_pb2.TokenRequest:
        rounds = range(first, first + len(keys))
        have = self._account.rounds_with_token()
        answered = self._account.last_round()
        pending = {place for request in self._requests for place in request.blinded}
        wanted = [
            place
            for place in rounds
            if place > answered and place not in have and place not in pending
        ]
        ahead = {place for place in have | pending if place > answered and place >= first}
        if len(ahead) + len(wanted) > _MOST_AHEAD:
            raise RefusedQuery(f"tokens for more than {_MOST_AHEAD} rounds to come")
        secret = self._secret()
        blinded = {place: self._blinded(secret, place, keys[place - first]) for place in wanted}
        self._requests.append(_Request(first, keys, blinded))
        elements = [blinded[place].blinded if place in blinded else b"" for place in rounds]
        return sign_token_request(first, elements, self._study, self._sign_key)

    def _secret(self) -> bytes:
        """The key derived from this approval's secret for its tokens alone."""
        approval = self._ledger.approval(self._study.identity)
        if not approval.partition:
            raise NotApproved("the secret of this approval is gone: revoke the study")
        return derived_key(approval.partition, "tokens")

    def _blinded(self, secret: bytes, round_number: int, key: bytes) -> BlindedToken:
        """The one token that this approval asks for under this key of this round."""
        question = framed(
            "token-coins", self._study.identity, self._sign_key.public, number(round_number), key
        )
        coins = stream_of(hmac.digest(secret, question, "sha256"))
        return tokens.blind(coins(tokens.COIN_BYTES))
