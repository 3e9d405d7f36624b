"""Every kind of bad input that a mix may get (docs/protocol.md, what is checked), against a real
mix process: what is refused, with which code, under which counter, and that nothing of it is
stored.  Rows about values inside a report, servers and data files are the coordinator's and the
silo's.
"""

import os
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from hashlib import sha256

import grpc
import grpc.aio
import pytest
from mixnet.real_mix import prepared, real_mix, refusal
from mixnet.scene import (
    ACCEPTED,
    COLUMNS,
    DENIED,
    EXHAUSTED,
    INVALID,
    PRECONDITION,
    REFUSED,
    REPORT_S,
    Scene,
    answered,
)
from silomix_lab.consortium.create import Consortium
from silomix_proto import mix_pb2, mix_pb2_grpc, round_pb2
from silomix_protocol.certificates.certificates import Authority, dialled_name
from silomix_protocol.connections.version import user_agent
from silomix_protocol.rounds.statements import check_receipt
from support.consortia import make_consortium
from support.heights import some_height
from support.mixes import (
    RPC_S,
    PlayedRound,
    asked,
    calling,
    collect,
    described,
    identity,
    invented_keys,
    open_at,
    refused_submission,
    run,
    sealed_reports,
    signer,
    silo_stream,
    submission,
    submit,
    submit_all,
    wide_task,
)

MEMORY_MB = 60.0  # how much a mix may grow while it is sent 100 MB that it refuses


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    made = make_consortium(
        tmp_path_factory.mktemp("small") / "c", mixes=1, rounds=100, deadline_s=20.0
    )
    with real_mix(made, open_rounds=100, report_s=REPORT_S) as mix:
        yield Scene(mix)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    made = make_consortium(
        tmp_path_factory.mktemp("wide") / "c",
        mixes=1,
        rounds=100,
        deadline_s=20.0,
        task=wide_task(COLUMNS),
    )
    with real_mix(made, open_rounds=100) as mix:
        yield Scene(mix)


def announced(
    made: Consortium, played: PlayedRound, first: bytes, size: int
) -> mix_pb2.SubmitFrame:
    """The first message of a report that says it has `size` bytes."""
    header = mix_pb2.SubmitHeader(
        digest=played.descriptor.digest,
        bytes=size,
        signature=signer(made, "silo-1").sign("report", played.descriptor.digest, bytes(32)),
        height=some_height(made, "silo-1").to_wire(),
    )
    return mix_pb2.SubmitFrame(header=header, chunk=first)


def length_of(played: PlayedRound) -> int:
    """Of an onion when it arrives."""
    return len(next(iter(sealed_reports(played).values())).sealed)


def test_a_report_that_announces_another_length_is_refused_at_once(small: Scene) -> None:
    async def scene() -> None:
        played = await small.round()
        length = length_of(played)
        for size in (0, 1, length - 1, length + 1, 2**40, 2**64 - 1):
            frame = announced(small.made, played, b"x", size)
            assert await refused_submission(small.made, "silo-1", [frame]) is INVALID
        assert small.stored(played) == 0

    before = small.mix.refused("wrong_length")
    run(scene())
    assert small.mix.refused("wrong_length") == before + 6


def test_a_report_longer_than_announced_is_cut_while_it_streams(wide: Scene) -> None:
    """40 streams that would go on for ever: each is ended with the first byte too many."""

    async def scene() -> None:
        played = await wide.round()
        length, chunk = length_of(played), bytes(2**20)
        for _ in range(40):
            endless = [announced(wide.made, played, chunk, length)]
            endless += [mix_pb2.SubmitFrame(chunk=chunk)] * (length // len(chunk))
            assert await refused_submission(wide.made, "silo-1", endless) is INVALID
        assert wide.stored(played) == 0

    before, memory = wide.mix.refused("wrong_length"), wide.mix.memory_mb
    run(scene())
    assert wide.mix.refused("wrong_length") == before + 40
    assert wide.mix.memory_mb - memory < MEMORY_MB
    assert list((wide.mix.state / "batches").iterdir()) == [], "nothing of it is left"


def test_one_message_larger_than_a_chunk_is_refused_unread(small: Scene) -> None:
    async def scene() -> None:
        played = await small.round()
        huge = announced(small.made, played, bytes(3 * 2**20), length_of(played))
        own = identity(small.made, "silo-1")
        credentials = grpc.ssl_channel_credentials(own.authority, own._key, own.certificate)
        options = [  # and no limit of our own
            ("grpc.ssl_target_name_override", dialled_name("mix-1")),
            ("grpc.primary_user_agent", user_agent()),
        ]
        address = small.made.study.mixes[0].address
        async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
            call = mix_pb2_grpc.MixStub(channel).Submit(timeout=RPC_S, wait_for_ready=True)
            code, _ = await refusal(answered(call, [huge]))
        assert code is EXHAUSTED
        assert small.stored(played) == 0

    run(scene())


@pytest.mark.parametrize("how", ["the stream ends", "another report begins", "an empty chunk"])
def test_a_truncated_report_is_refused(small: Scene, how: str) -> None:
    async def scene() -> None:
        played = await small.round()
        sealed = sealed_reports(played)["silo-1"].sealed
        start = submission(small.made, "silo-1", played.descriptor, sealed, chunk_bytes=500)[:2]
        if how == "another report begins":
            start.append(start[0])
        elif how == "an empty chunk":
            start.append(mix_pb2.SubmitFrame())
        code = await refused_submission(small.made, "silo-1", start, ends=how == "the stream ends")
        assert code is INVALID
        assert small.stored(played) == 0

    run(scene())


@pytest.mark.parametrize("method", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_a_compressed_message_is_not_read(small: Scene, method: grpc.Compression) -> None:
    async def scene() -> None:
        played = await small.round()
        frame = announced(small.made, played, bytes(1000), length_of(played))
        async with calling(small.made, "silo-1", "mix-1") as stub:
            call = stub.Submit(
                iter([frame]), timeout=RPC_S, wait_for_ready=True, compression=method
            )
            code, _ = await refusal(call.read())
        assert code is grpc.StatusCode.UNIMPLEMENTED

    run(scene())


def test_a_slow_report_runs_out_of_time_and_blocks_nobody(small: Scene) -> None:
    """Every silo holds one stream that says nothing; one more dribbles; the round goes on."""

    async def scene() -> None:
        played = await small.round()
        reports = sealed_reports(played)
        slow = submission(
            small.made, "silo-1", played.descriptor, reports["silo-1"].sealed, chunk_bytes=1
        )
        async with AsyncExitStack() as stack:
            for silo in reports:
                await stack.enter_async_context(silo_stream(small.made, silo))
            async with calling(small.made, "silo-1", "mix-1") as stub:
                call = stub.Submit(timeout=RPC_S, wait_for_ready=True)
                await call.write(slow[0])
                await call.write(slow[1])
                for silo in ("silo-2", "silo-3"):
                    frames_ = submission(small.made, silo, played.descriptor, reports[silo].sealed)
                    (receipt,) = await submit(small.made, silo, frames_)
                    assert receipt.status == ACCEPTED
                code, _ = await refusal(call.read())
                assert code is grpc.StatusCode.DEADLINE_EXCEEDED
            whole = submission(small.made, "silo-1", played.descriptor, reports["silo-1"].sealed)
            (receipt,) = await submit(small.made, "silo-1", whole)
            assert receipt.status == ACCEPTED, "nothing of the slow one was kept"
        assert len((await collect(played)).reports) == 3

    before = small.mix.refused("too_slow")
    run(scene())
    assert small.mix.refused("too_slow") == before + 1


def test_what_belongs_to_no_open_round_is_refused_and_counted(small: Scene) -> None:
    async def scene() -> None:
        made, number = small.made, next(small.numbers)
        keys = (await prepared(made, 0, number)).keys
        unopened = described(made, keys, number)
        onion = bytes(length_of(unopened))
        frames_ = submission(made, "silo-1", unopened.descriptor, onion)
        assert await refused_submission(made, "silo-1", frames_) is PRECONDITION
        for digest in (b"", b"short", bytes(32), bytes(1000)):
            frame = mix_pb2.SubmitFrame(header=mix_pb2.SubmitHeader(digest=digest, bytes=10))
            assert await refused_submission(made, "silo-1", [frame]) is PRECONDITION
        assert await refused_submission(made, "silo-1", [mix_pb2.SubmitFrame()]) is PRECONDITION

    before = small.mix.refused("wrong_round")
    run(scene())
    assert small.mix.refused("wrong_round") == before + 6


def resigned(
    made: Consortium, played: PlayedRound, **changes: object
) -> round_pb2.SignedDescriptor:
    """The descriptor with other fields, truly signed by the coordinator."""
    message = round_pb2.RoundDescriptor.FromString(played.descriptor.encoded)
    for name, value in changes.items():
        setattr(message, name, value)
    encoded = message.SerializeToString(deterministic=True)
    signature = signer(made, "server").sign("descriptor", encoded)
    return round_pb2.SignedDescriptor(descriptor=encoded, signature=signature)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": 2}, "refused_descriptor"),
        ({"suite": "X25519/HKDF-SHA256/AES-128-GCM"}, "refused_descriptor"),
        ({"round": 0}, "refused_descriptor"),
        ({"round": 101}, "refused_descriptor"),
        ({"attempt": 9}, "refused_descriptor"),
        ({"minimum_batch": 1}, "refused_descriptor"),
        ({"deadline_ms": 1}, "refused_descriptor"),
        ({"dimension": 1}, "refused_descriptor"),
        ({"silos": b"\x01"}, "refused_descriptor"),
        ({"silos": b"\xff"}, "refused_descriptor"),
        ({"study": bytes(32)}, "wrong_round"),
    ],
    ids=str,
)
def test_a_descriptor_of_another_version_study_or_size_is_refused(
    small: Scene, changes: dict[str, object], reason: str
) -> None:
    async def scene() -> None:
        made, number = small.made, next(small.numbers)
        played = described(made, (await prepared(made, 0, number)).keys, number)
        async with calling(made, "server", "mix-1") as stub:
            call = asked(stub.Open, resigned(made, played, **changes))
            assert (await refusal(call))[0] is PRECONDITION

    before = small.mix.refused(reason)
    run(scene())
    assert small.mix.refused(reason) == before + 1


def test_a_round_with_keys_that_this_mix_did_not_make_is_refused(small: Scene) -> None:
    async def scene() -> None:
        made, number = small.made, next(small.numbers)
        await prepared(made, 0, number)
        foreign = described(made, invented_keys(made), number)
        code, _ = await refusal(open_at(made, foreign.descriptor, "mix-1"))
        assert code is PRECONDITION
        unprepared = described(made, invented_keys(made), next(small.numbers))
        code, _ = await refusal(open_at(made, unprepared.descriptor, "mix-1"))
        assert code is PRECONDITION

    before = small.mix.refused("wrong_round")
    run(scene())
    assert small.mix.refused("wrong_round") == before + 2


def test_a_report_signed_with_another_key_is_refused(small: Scene) -> None:
    async def scene() -> None:
        played = await small.round()
        sealed = sealed_reports(played)["silo-1"].sealed
        frames_ = submission(small.made, "silo-1", played.descriptor, sealed, signed_by="silo-2")
        assert await refused_submission(small.made, "silo-1", frames_) is DENIED
        assert small.stored(played) == 0

    before = small.mix.refused("forged_signature")
    run(scene())
    assert small.mix.refused("forged_signature") == before + 1


def test_garbage_gets_the_same_receipt_as_a_good_report(small: Scene) -> None:
    """What does not open is dropped and counted; its sender, and who listens, learn nothing."""

    async def scene() -> None:
        played = await small.round()
        reports = {silo: onion.sealed for silo, onion in sealed_reports(played).items()}
        reports["silo-1"] = os.urandom(len(reports["silo-1"]))
        receipts = {}
        for silo, sealed in reports.items():
            frames_ = submission(small.made, silo, played.descriptor, sealed)
            (receipts[silo],) = await submit(small.made, silo, frames_)
        for place, (silo, receipt) in enumerate(receipts.items()):
            report, study = sha256(reports[silo]).digest(), small.made.study
            check_receipt(receipt, played.descriptor.digest, place, report, study)
        garbage, good = receipts["silo-1"], receipts["silo-2"]
        assert [name.name for name, _ in garbage.ListFields()] == [
            name.name for name, _ in good.ListFields()
        ]
        assert (garbage.status, garbage.reason) == (good.status, good.reason)
        assert garbage.ByteSize() == good.ByteSize()
        batch = await collect(played)
        assert (batch.chain[0].received, batch.chain[0].dropped, len(batch.reports)) == (3, 1, 2)

    before = small.mix.count("reports", "dropped")
    run(scene())
    assert small.mix.count("reports", "dropped") == before + 1


def test_the_same_bytes_get_the_same_receipt_and_others_are_refused(small: Scene) -> None:
    async def scene() -> None:
        played = await small.round()
        reports, others = sealed_reports(played), sealed_reports(played, seed=1)

        async def send(sealed: bytes) -> mix_pb2.Receipt:
            frames_ = submission(small.made, "silo-1", played.descriptor, sealed)
            (receipt,) = await submit(small.made, "silo-1", frames_)
            return receipt

        first = await send(reports["silo-1"].sealed)
        assert await send(reports["silo-1"].sealed) == first
        second = await send(others["silo-1"].sealed)
        assert (second.status, second.signature) == (REFUSED, b"")
        del reports["silo-1"]
        await submit_all(played, reports)
        assert len((await collect(played)).reports) == 3
        late = await send(others["silo-1"].sealed)
        assert late.status == REFUSED, "and after the batch left"
        assert (await send_again(played)).status == REFUSED

    async def send_again(played: PlayedRound) -> mix_pb2.Receipt:
        later = await small.round()
        frames_ = submission(
            small.made, "silo-2", played.descriptor, sealed_reports(later)["silo-2"].sealed
        )
        (receipt,) = await submit(small.made, "silo-2", frames_)
        return receipt

    before = small.mix.refused("replayed_report")
    run(scene())
    assert small.mix.refused("replayed_report") >= before + 2


def test_an_unknown_certificate_fails_in_tls(small: Scene) -> None:
    """Another authority's certificate with an enrolled name, and none at all: no call arrives."""
    own = identity(small.made, "silo-1")
    address = small.made.study.mixes[0].address
    stranger = Authority.create("another", datetime.now(UTC)).issue(
        "silo-1", (), datetime.now(UTC), serves=False
    )

    async def fails(credentials: grpc.ChannelCredentials) -> grpc.StatusCode:
        options = [("grpc.ssl_target_name_override", dialled_name("mix-1"))]
        async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
            stub = mix_pb2_grpc.MixStub(channel)
            call = stub.Collect(mix_pb2.CollectRequest(digest=bytes(32)), timeout=RPC_S)
            return (await refusal(call.read()))[0]

    async def scene() -> None:
        for credentials in (
            grpc.ssl_channel_credentials(own.authority),
            grpc.ssl_channel_credentials(own.authority, stranger.key, stranger.certificate),
        ):
            assert await fails(credentials) is grpc.StatusCode.UNAVAILABLE

    before = small.mix.metrics
    run(scene())
    assert small.mix.metrics == before, "nothing was counted: nobody called"


def test_an_enrolled_party_calls_only_what_is_its_to_call(small: Scene) -> None:
    async def scene() -> None:
        played = await small.round()
        sealed = sealed_reports(played)["silo-1"].sealed
        frames_ = submission(small.made, "silo-1", played.descriptor, sealed)
        assert await refused_submission(small.made, "server", frames_) is DENIED
        for code, _ in (
            await refusal(open_at(small.made, played.descriptor, "mix-1", caller="silo-1")),
            await refusal(collect(played, caller="silo-1")),
        ):
            assert code is DENIED

    run(scene())
