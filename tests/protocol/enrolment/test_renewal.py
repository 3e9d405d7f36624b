"""What a party's keeper does without anybody asking, and what it says when it cannot."""

from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from silomix_proto import authority_pb2, ledger_pb2
from silomix_protocol.certificates.certificates import Life, parse_certificate
from silomix_protocol.enrolment import enrolment, renewal
from silomix_protocol.enrolment.enrolment import Enrolment, accept_membership
from silomix_protocol.enrolment.renewal import Keeper
from silomix_protocol.host import logs
from support.authorities import SILO, Office, office
from support.mixes import run

TWO_WEEKS = timedelta(days=14)


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(logs, "warning", lambda name, **_: said.append(name))
    return said


def joined(here: Office) -> Enrolment:
    invitation, keys, folder = here.invite(), here.keys(), here.folder / SILO.name
    accept_membership(invitation, keys, here.join(invitation, keys), folder, here.now)
    return Enrolment.load(folder)


def looked(keeper: Keeper) -> timedelta:
    return run(keeper.look())


def test_nothing_is_asked_while_everything_is_fresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warnings: list[str]
) -> None:
    def asked(*_: object) -> Coroutine[Any, Any, Any]:
        raise AssertionError("nothing was due")

    monkeypatch.setattr(renewal, "renew", asked)
    monkeypatch.setattr(renewal, "fetch_list", asked)
    with office(tmp_path) as here:
        pause = looked(Keeper(joined(here).folder))
    assert timedelta(seconds=30) < pause <= timedelta(minutes=1)
    assert warnings == []


@pytest.mark.parametrize(
    ("age", "said"),
    [
        (timedelta(days=9), ["revocation_list_not_fetched"]),
        (timedelta(days=10), ["certificate_not_renewed", "revocation_list_not_fetched"]),
        (timedelta(days=15), ["certificate_expired", "revocation_list_not_fetched"]),
    ],
)
def test_after_two_thirds_of_its_life_a_certificate_is_due_and_the_operator_is_told_once(
    tmp_path: Path, warnings: list[str], age: timedelta, said: list[str]
) -> None:
    with office(tmp_path, datetime.now(UTC) - age) as here:
        enrolment = joined(here)
    keeper = Keeper(enrolment.folder)
    before = (enrolment.folder / "tls.crt").read_bytes()
    pause = looked(keeper)
    looked(keeper)
    assert warnings == said
    assert timedelta() < pause <= timedelta(minutes=1)
    assert (enrolment.folder / "tls.crt").read_bytes() == before
    life = Life.of(parse_certificate(before))
    assert (life.expires - life.issued, life.renewal - life.issued) == (
        TWO_WEEKS,
        TWO_WEEKS * 2 / 3,
    )


def test_whose_revocation_is_undone_is_in_the_log(tmp_path: Path, warnings: list[str]) -> None:
    with office(tmp_path) as here:
        enrolment, life = joined(here), timedelta(hours=1)

        def take(*changes: str) -> None:
            authority, number = here.config.authority(), len(changes)
            content = authority.revocation_list(number, [], changes, here.now, life)
            enrolment.revocations.take(content)

        take("silo-8", "silo-9")
        keeper = Keeper(enrolment.folder)
        take("silo-7", "silo-8", "silo-9")
        looked(keeper)
        assert warnings == []
        take("silo-7", "silo-8", "silo-9", "silo-8")
        looked(keeper)
        looked(keeper)
    assert warnings == ["no_longer_revoked"]


def test_a_party_without_an_authority_is_told_that_its_certificate_expires(
    tmp_path: Path, warnings: list[str]
) -> None:
    with office(tmp_path, datetime.now(UTC) - timedelta(days=10)) as here:
        folder = joined(here).folder
    (folder / "enrolment.toml").unlink()
    looked(Keeper(folder))
    assert warnings == ["certificate_expires"]


class Ledger:
    """A silo's, as the keeper sees it."""

    def __init__(self, heard: list[ledger_pb2.LedgerHeight]) -> None:
        self._heard = heard

    def height(self) -> ledger_pb2.LedgerHeight:
        return ledger_pb2.LedgerHeight(entries=5)

    def hear(self, shown: ledger_pb2.LedgerHeight, by: str) -> None:
        assert by == "authority"
        self._heard.append(shown)


def test_a_silo_asks_at_once_and_hears_which_height_of_its_ledger_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warnings: list[str]
) -> None:
    """Though its list is fresh: it may have been put back a moment ago."""
    asked: list[authority_pb2.ListRequest] = []
    heard: list[ledger_pb2.LedgerHeight] = []
    known = ledger_pb2.LedgerHeight(entries=9)
    with office(tmp_path) as here:

        async def answered(_method: object, question: Any, _address: str) -> Any:
            asked.append(question)
            content = here.desk.revocation_list(here.now)
            return authority_pb2.RevocationList(list=content, height=known)

        monkeypatch.setattr(enrolment, "_asked", answered)
        looked(Keeper(joined(here).folder, ledger=Ledger(heard)))
    assert [(each.name, each.height.entries) for each in asked] == [(SILO.name, 5)]
    assert heard == [known]
    assert warnings == []
