"""An introduction lets in one silo, at one party, for one study, once, and at about this time."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from time import time
from typing import Any, cast

import pytest
from silomix_lab.consortium.create import Consortium
from silomix_proto import channel_pb2, introduction_pb2
from silomix_protocol.certificates.certificates import Authority
from silomix_protocol.connections.introduction import TOLERANCE_S, Caller, Door, Speaker, introduce
from silomix_protocol.connections.tls import Identity, ServerContext, UnknownPeer
from silomix_protocol.connections.version import WrongVersion, check_user_agent, user_agent
from silomix_protocol.grpc_calls.introduction_header import HEADER
from silomix_protocol.keys import ForgedSignature, SigningKey
from support.consortia import make_consortium
from support.coordinators import identity, signer

NOW = time() + 3600  # in whatever order tests run, certificates are valid then


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    return make_consortium(tmp_path_factory.mktemp("introduction") / "consortium")


@dataclass
class Call:
    """What a door looks at of a call."""

    metadata: tuple[tuple[str, str | bytes], ...] = ()
    names: list[bytes] = field(default_factory=list)

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self.metadata

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"x509_common_name": self.names} if self.names else {}


def authority(made: Consortium) -> bytes:
    return (made.server.parent / "ca.crt").read_bytes()


def context(*metadata: tuple[str, str | bytes], name: str = "") -> ServerContext:
    return cast(ServerContext, Call(metadata, [name.encode()] if name else []))


def door(made: Consortium, at: float = NOW, party: str = "mix-1") -> Door:
    return Door(party, authority(made), (made.study,), now=lambda: at)


def introduction(made: Consortium, silo: str = "silo-1", **changed: Any) -> ServerContext:
    """A call with an introduction, signed by `key` if one is given, for `party`, at `now`."""
    key: SigningKey = changed.get("key") or signer(made, silo)
    own: Identity = changed.get("own") or identity(made, silo)
    party, now = changed.get("party", "mix-1"), changed.get("now", NOW)
    return context(*introduce(own, party, made.study, key, now).metadata)


def test_an_introduced_silo_is_let_in_once(made: Consortium) -> None:
    entrance, call = door(made), introduction(made)
    assert entrance.caller(call).name == "silo-1"
    with pytest.raises(UnknownPeer, match="used before"):
        entrance.caller(call)
    assert entrance.caller(introduction(made)).name == "silo-1", "a new one is welcome"


def test_nobody_is_let_in_without_leave_of_the_operator(made: Consortium) -> None:
    with pytest.raises(UnknownPeer, match="takes no introductions"):
        Door("mix-1", authority(made)).caller(introduction(made))
    with pytest.raises(UnknownPeer, match="neither a certificate nor an introduction"):
        door(made).caller(context(("user-agent", user_agent())))


def test_an_introduction_is_for_one_party(made: Consortium) -> None:
    """A mix cannot pass for its silos elsewhere."""
    with pytest.raises(UnknownPeer, match="this is mix-1, not server"):
        door(made).caller(introduction(made, party="server"))


def test_an_introduction_needs_the_key_that_the_study_pins(made: Consortium) -> None:
    for stranger in (SigningKey.generate(), signer(made, "silo-2")):
        with pytest.raises(UnknownPeer, match="not valid"):
            door(made).caller(introduction(made, key=stranger))
    with pytest.raises(UnknownPeer, match="does not enrol you"):
        door(made).caller(introduction(made, "mix-2"))


def test_a_certificate_must_be_as_good_as_tls_wants_it(made: Consortium) -> None:
    """Whoever is no longer certified is not let in at this door either."""
    now = datetime.fromtimestamp(NOW, UTC)
    other = Authority.create("silomix consortium", now)  # the same name, another key
    issued = other.issue("silo-1", (), now, serves=False)
    foreign = Identity("silo-1", authority(made), issued.certificate, issued.key)
    with pytest.raises(UnknownPeer, match="not one of the consortium's"):
        door(made).caller(introduction(made, own=foreign))
    with pytest.raises(UnknownPeer, match="not one of the consortium's"):
        door(made).caller(introduction(made, own=replace(foreign, certificate=b"")))
    borrowed = replace(identity(made, "silo-2"), name="silo-1")
    with pytest.raises(UnknownPeer, match="somebody else's"):
        door(made).caller(introduction(made, own=borrowed))
    later = NOW + timedelta(days=91).total_seconds()
    with pytest.raises(UnknownPeer, match="has expired"):
        door(made, later).caller(introduction(made, now=later))


@pytest.mark.parametrize(
    ("off_s", "said"), [(TOLERANCE_S + 1, "ahead of"), (-TOLERANCE_S - 1, "behind")]
)
def test_an_introduction_of_another_time_is_refused_in_words(
    made: Consortium, off_s: float, said: str
) -> None:
    with pytest.raises(UnknownPeer, match=f"your clock is 301 s {said}"):
        door(made).caller(introduction(made, now=NOW + off_s))
    assert door(made).caller(introduction(made, now=NOW + 0.9 * off_s)).name == "silo-1"


def test_what_is_forgotten_is_too_old_to_be_used_again(made: Consortium) -> None:
    """A nonce may be forgotten only when its introduction is refused for its time."""
    clock = [NOW]
    entrance = Door("mix-1", authority(made), (made.study,), now=lambda: clock[0])
    early = introduction(made, now=NOW + 0.99 * TOLERANCE_S)  # valid longest
    entrance.caller(early)
    for later in range(0, 1300, 50):
        clock[0] = NOW + later
        entrance.caller(introduction(made, now=clock[0]))
        with pytest.raises(UnknownPeer):
            entrance.caller(early)
    assert len(entrance._met) < 25, "nothing is ever forgotten"


def test_a_changed_introduction_is_refused(made: Consortium) -> None:
    (header,) = introduce(
        identity(made, "silo-1"), "mix-1", made.study, signer(made, "silo-1"), NOW
    ).metadata
    signed = introduction_pb2.Signed.FromString(header[1])
    said = introduction_pb2.Introduction.FromString(signed.content)
    said.silo = "silo-2"
    forged = introduction_pb2.Signed(content=said.SerializeToString(), signature=signed.signature)
    for content in (forged.SerializeToString(), b"\xff\xff", header[1][:-1], b""):
        with pytest.raises((UnknownPeer, WrongVersion)):
            door(made).caller(context((HEADER, content)))


def test_a_name_with_two_keys_is_nobody(made: Consortium, tmp_path: Path) -> None:
    """Two studies whose silo-1 are different hospitals: neither can stand in for the other."""
    other = make_consortium(tmp_path / "other").study
    entrance = Door("mix-1", authority(made), (made.study, other), now=lambda: NOW)
    with pytest.raises(UnknownPeer, match="different keys"):
        entrance.caller(introduction(made))


def test_a_certificate_needs_no_introduction_and_an_introduction_overrides_none(
    made: Consortium,
) -> None:
    (header,) = introduce(
        identity(made, "silo-1"), "mix-1", made.study, signer(made, "silo-1"), NOW
    ).metadata
    certified = context(("user-agent", user_agent()), header, name="silo-2")
    assert door(made).caller(certified) == Caller("silo-2")


def test_another_version_is_refused_with_both_releases(
    made: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    certified = context(("user-agent", "silomix/9.1 protocol/7 grpc-python/1"), name="silo-1")
    with pytest.raises(WrongVersion, match=r"you speak version 7 .*\(silomix 9\.1\).* version 1 "):
        door(made).caller(certified)
    monkeypatch.setattr("silomix_protocol.connections.introduction.VERSION", 3)
    with pytest.raises(WrongVersion, match="you speak version 3"):
        door(made).caller(introduction(made))


@pytest.mark.parametrize(
    "text", ["", "grpc-python/1.80", "silomix/1 protocol/x", "x silomix/1 protocol/1"]
)
def test_who_does_not_say_its_version_is_refused(text: str) -> None:
    with pytest.raises(WrongVersion, match="did not say"):
        check_user_agent(text)
    check_user_agent(user_agent() + " grpc-python-asyncio/1.80.1")


# A signed stream ---------------------------------------------------------------------------------


def heard(made: Consortium, frames: list[channel_pb2.SiloFrame], nonce: bytes) -> list[bytes]:
    """The studies that arrive of these frames."""

    async def source() -> AsyncIterator[channel_pb2.SiloFrame]:
        for frame in frames:
            yield frame

    async def listen() -> list[bytes]:
        silo = made.study.silo("silo-1")
        assert silo is not None
        caller = Caller("silo-1", nonce, silo.sign_key)
        return [frame.inspect async for frame in caller.frames(source())]

    return asyncio.run(listen())


def said(made: Consortium, count: int) -> tuple[bytes, list[channel_pb2.SiloFrame]]:
    introduced = introduce(identity(made, "silo-1"), "server", made.study, signer(made, "silo-1"))
    contents = [channel_pb2.SiloFrame(inspect=bytes([each])) for each in range(count)]
    signed = [introduced.speaker.signed(each.SerializeToString()) for each in contents]
    return introduced.speaker._stream, [channel_pb2.SiloFrame(signed=each) for each in signed]


def test_signed_frames_arrive_in_order(made: Consortium) -> None:
    nonce, frames = said(made, 3)
    assert heard(made, frames, nonce) == [b"\0", b"\1", b"\2"]


def test_frames_cannot_be_left_out_repeated_swapped_added_or_changed(made: Consortium) -> None:
    nonce, (first, second, third) = said(made, 3)
    _, (foreign, *_) = said(made, 1)  # of another stream
    changed = channel_pb2.SiloFrame.FromString(first.SerializeToString())
    changed.signed.content += b"\0"
    plain = channel_pb2.SiloFrame(inspect=b"\0")
    for frames in (
        [second],
        [first, third],
        [first, first],
        [second, first],
        [foreign],
        [changed],
        [plain],
    ):
        with pytest.raises(ForgedSignature):
            heard(made, frames, nonce)


def test_what_the_server_says_is_held_against_its_pinned_key(made: Consortium) -> None:
    silo = made.study.silo("silo-1")
    assert silo is not None
    introduced = introduce(identity(made, "silo-1"), "server", made.study, signer(made, "silo-1"))
    caller = Caller("silo-1", introduced.speaker._stream, silo.sign_key)
    speaker = caller.speaker(signer(made, "server"))
    assert speaker is not None
    assert introduced.listener.content(speaker.signed(b"event")) == b"event"
    impostor = replace(caller).speaker(signer(made, "mix-1"))
    assert impostor is not None
    with pytest.raises(ForgedSignature):
        introduced.listener.content(impostor.signed(b"event"))


def test_what_the_server_says_to_one_silo_fits_into_no_other_silos_stream(
    made: Consortium,
) -> None:
    """Whatever nonce an accomplice takes: the stream is that of one introduction."""
    mine, theirs = (
        introduce(identity(made, silo), "server", made.study, signer(made, silo))
        for silo in ("silo-1", "silo-2")
    )
    server = SigningKey.load(made.server.parent / "sign.key")
    speaker = Speaker("channel-event", theirs.speaker._stream, server)
    with pytest.raises(ForgedSignature):
        mine.listener.content(speaker.signed(b"x"))
    own = Speaker("channel-event", mine.speaker._stream, server)
    assert mine.listener.content(own.signed(b"x")) == b"x"
    content = introduction_pb2.Signed.FromString(mine.metadata[0][1]).content
    assert mine.speaker._stream == sha256(content).digest()
