"""Tokens for silos: at most one for every silo and round, whatever happens to either side.

The silo's blinded element is on disk before it is answered.  The same element again gets the same
token, so a silo whose connection broke loses nothing; another element gets nothing.  The
token that comes back inside a report cannot be linked to the element that was blinded.
"""

import secrets
from pathlib import Path
from threading import Lock

from silomix_core.study.study import Study
from silomix_proto import channel_pb2
from silomix_protocol.host.durable import open_database, transaction
from silomix_protocol.keys import read_secret, write_secret
from silomix_protocol.rounds.tokens import Issuer, RefusedToken, Token, issuer

from silomix_server.errors import UnwelcomeFrame

SEED = "token.seed"
_SEED_BYTES = 32
_BLINDED_BYTES = 32
_SCHEMA = """
CREATE TABLE IF NOT EXISTS tokens (
    silo TEXT NOT NULL, round INTEGER NOT NULL, blinded BLOB NOT NULL, PRIMARY KEY (silo, round)
) WITHOUT ROWID
"""
_VERSION = 1


class TokenDesk:
    """Issues the tokens of a study and recognizes them.

    `issue` may run in any thread, `valid` at the same time as everything but `public_keys`.
    """

    def __init__(self, study: Study, state: Path) -> None:
        seed = _seed(state / SEED)
        self._issuing, self._checking = issuer(seed, study.identity), issuer(seed, study.identity)
        self._register = TokenRegister(state / f"tokens-{study.short_id}.sqlite")
        self._lock = Lock()

    def public_keys(self, first_round: int, rounds: int) -> list[bytes]:
        return [self._checking.public_key(first_round + each) for each in range(rounds)]

    def valid(self, round_number: int, token: Token) -> bool:
        return self._checking.valid(round_number, token)

    def issue(self, silo: str, request: channel_pb2.TokenRequest) -> channel_pb2.TokenReply:
        """Evaluate a silo's elements, empty where it may have no token; durable on return."""
        asked = {
            request.first_round + place: blinded
            for place, blinded in enumerate(request.blinded)
            if blinded
        }
        with self._lock:
            issued = self._register.issued(silo, asked)
            evaluated = {
                round_number: element
                for round_number, blinded in asked.items()
                if issued.get(round_number, blinded) == blinded
                and (element := _evaluated(self._issuing, round_number, blinded))
            }
            self._register.record(silo, {each: asked[each] for each in evaluated})
        rounds = range(request.first_round, request.first_round + len(request.blinded))
        return channel_pb2.TokenReply(
            first_round=request.first_round,
            evaluated=[evaluated.get(each, b"") for each in rounds],
        )

    def has_all(self, silo: str, rounds: range) -> bool:
        """Whether the silo was given a token for each of these rounds."""
        with self._lock:
            return len(self._register.issued(silo, rounds)) == len(rounds)

    def close(self) -> None:
        with self._lock:
            self._register.close()


class TokenRegister:
    """The blinded elements that were answered, on disk."""

    def __init__(self, path: Path) -> None:
        self._database = open_database(path, _SCHEMA, _VERSION, any_thread=True)

    def issued(self, silo: str, rounds: "range | dict[int, bytes]") -> dict[int, bytes]:
        """The elements of a silo that were answered in these rounds, by round."""
        if not rounds:
            return {}
        rows = self._database.execute(
            "SELECT round, blinded FROM tokens WHERE silo = ? AND round BETWEEN ? AND ?",
            (silo, min(rounds), max(rounds)),
        )
        return {number: blinded for number, blinded in rows if number in rounds}

    def record(self, silo: str, blinded: dict[int, bytes]) -> None:
        """Record answered elements in one transaction; what is there already stays."""
        rows = [(silo, number, element) for number, element in blinded.items()]
        with transaction(self._database):
            self._database.executemany("INSERT OR IGNORE INTO tokens VALUES (?, ?, ?)", rows)

    def close(self) -> None:
        self._database.close()


def check_request(request: channel_pb2.TokenRequest, rounds: range) -> None:
    """Refuse a request for other rounds than these, or with elements of a wrong length."""
    if request.first_round != rounds.start or len(request.blinded) != len(rounds):
        raise UnwelcomeFrame("tokens were asked for other rounds than those announced")
    if any(len(each) not in (0, _BLINDED_BYTES) for each in request.blinded):
        raise UnwelcomeFrame(f"a blinded element has {_BLINDED_BYTES} bytes")


def _evaluated(issuing: Issuer, round_number: int, blinded: bytes) -> bytes:
    try:
        return issuing.evaluate(round_number, blinded)
    except RefusedToken:
        return b""


def _seed(path: Path) -> bytes:
    if not path.exists():
        write_secret(path, secrets.token_bytes(_SEED_BYTES))
    return read_secret(path, _SEED_BYTES)
