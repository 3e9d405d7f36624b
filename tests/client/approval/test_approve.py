"""The operator's consent: to this study, these keys, these records, inside this policy; or none."""

import os
from datetime import timedelta

import pytest
import tomli_w
from silomix_client.approval.approve import approve, review, revoke
from silomix_client.config.silo_config import SiloConfig, load
from silomix_client.errors import (
    BadRecords,
    BudgetExhausted,
    NotApproved,
    OutsidePolicy,
    SiloError,
)
from silomix_core.accounting.composition import epsilon_of
from silomix_core.mechanism.mechanism import Participant
from silomix_core.study.reader import parse_study
from silomix_lab.consortium.create import Consortium
from silomix_protocol.certificates.certificates import key_pem
from silomix_protocol.keys import SigningKey, UnusableKey, generate_node_key, write_secret
from support.consortia import SMALL_TASK, csv_path, write_data
from support.silos import NOW, altered, approved_silo, open_ledger, study_file, written


def with_policy(
    made: Consortium, *, epsilon: float = 2.0, minimum_people: int = 1, index: int = 0
) -> SiloConfig:
    delta = made.study.target.delta
    policy: dict[str, object] = {"epsilon": epsilon, "delta": delta, "minimum_batch": 1}
    policy["minimum_people"] = minimum_people
    (made.silos[index].parent / "policy.toml").write_text(tomli_w.dumps(policy))
    return load(made.silos[index])


def another_study(content: bytes, name: str) -> bytes:
    """The same study under another name: another identity, the same cost."""
    return content.replace(b'name = "test"', b'name = "%s"' % name.encode())


def approvals(config: SiloConfig) -> list[bytes]:
    ledger = open_ledger(config)
    try:
        return [entry.study.identity for entry in ledger.approvals()]
    finally:
        ledger.close()


# What is revoked ---------------------------------------------------------------------------------


@pytest.mark.parametrize("approved_while_running", [False, True])
def test_no_byte_of_the_secret_stays_when_a_study_is_revoked_while_the_silo_runs(
    consortium: Consortium, approved_while_running: bool
) -> None:
    """With it, and reports that were recorded, noise could be taken off."""
    config = load(consortium.silos[0]) if approved_while_running else approved_silo(consortium)
    running = open_ledger(config)
    try:
        if approved_while_running:
            approved_silo(consortium)
        secret = running.approval(consortium.study.identity).partition
        files = sorted(config.state.glob("ledger.sqlite*"))
        assert any(secret in each.read_bytes() for each in files)
        revoke(config, consortium.study, NOW)
        assert [each.name for each in files if secret in each.read_bytes()] == []
    finally:
        running.close()


# What is approved --------------------------------------------------------------------------------


def test_an_approved_study_is_the_one_whose_bytes_were_reviewed(consortium: Consortium) -> None:
    config = approved_silo(consortium)
    ledger = open_ledger(config)
    approval = ledger.approval(consortium.study.identity)
    ledger.close()
    assert approval.study == consortium.study
    assert approval.participant.records == 40


def test_a_review_writes_nothing(consortium: Consortium) -> None:
    config = load(consortium.silos[0])
    before = sorted(config.folder.rglob("*"))
    review(config, study_file(consortium))
    assert sorted(config.folder.rglob("*")) == before


def test_a_review_states_the_silos_own_loss(consortium: Consortium) -> None:
    """All records move a sum alike; where all silos do, the smallest loses most."""
    promised = consortium.study.target.epsilon

    def losses() -> list[float]:
        return [review(load(path), study_file(consortium)).epsilon for path in consortium.silos]

    alike = losses()
    assert alike == pytest.approx([promised] * 3, rel=1e-6)
    assert max(alike) <= promised
    altered(consortium, ('weights = "records"', 'weights = "equal"'))
    first, second, third = losses()
    assert first == pytest.approx(promised, rel=1e-6)
    assert promised >= first > second > third > 0


def test_approvals_are_listed_in_the_order_they_were_given(consortium: Consortium) -> None:
    config = with_policy(consortium, epsilon=6.0)
    contents = [another_study(study_file(consortium), f"study-{number}") for number in (3, 1, 2)]
    for minutes, content in enumerate(contents):
        approve(config, review(config, content), NOW + timedelta(minutes=minutes))
    assert approvals(config) == [parse_study(content).identity for content in contents]


# What is refused ---------------------------------------------------------------------------------


def refused(config: SiloConfig, content: bytes, kind: type[Exception]) -> str:
    """Review and approve, expecting a refusal that leaves no trace; its message."""
    before = written(config)
    with pytest.raises(kind) as caught:
        approve(config, review(config, content), NOW)
    rows, files = written(config)
    assert rows == before[0]
    assert files.items() >= before[1].items()
    return str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        (b'loss = "logistic"', b'loss = "zero-one"', "task.loss"),
        (b"rounds = 5", b"rounds = 0", "rounds"),
        (b"clip = 0.25", b"clip = -1.0", "clip"),
        (b"epsilon = 2.0", b"epsilon = inf", "privacy.epsilon"),
        (b"version = 1", b"version = 2", "version 2"),
        (b"version = 1", b"version = 1\nnoise = false", "unknown key: noise"),
        (b"clip = 0.25", b"clip = 0.25\nsigma = 0.0", "unknown key: privacy.sigma"),
        (b'name = "mix-1"', b'name = "silo-1"', "different names"),
        (b"records = 40", b"records = 0", "records"),
    ],
)
def test_an_invalid_study_is_refused_with_the_key(
    consortium: Consortium, old: bytes, new: bytes, named: str
) -> None:
    content = study_file(consortium)
    assert old in content
    message = refused(load(consortium.silos[0]), content.replace(old, new, 1), NotApproved)
    assert message.startswith("not a valid study: ")
    assert named in message


@pytest.mark.parametrize("content", [b"", b"\xff", b"study", b"version = 1"])
def test_bytes_that_are_no_study_are_refused(consortium: Consortium, content: bytes) -> None:
    message = refused(load(consortium.silos[0]), content, NotApproved)
    assert message.startswith("not a valid study: ")


def test_a_study_without_this_silo_is_refused(consortium: Consortium) -> None:
    content = study_file(consortium).replace(b'"silo-1"', b'"silo-9"')
    message = refused(load(consortium.silos[0]), content, NotApproved)
    assert message == "the study does not name 'silo-1' among its silos"


def test_a_study_with_another_signing_key_is_refused(consortium: Consortium) -> None:
    config = load(consortium.silos[0])
    (config.folder / "sign.key").unlink()
    SigningKey.generate().save(config.folder / "sign.key")
    message = refused(config, study_file(consortium), NotApproved)
    assert message == "the study lists another signing key for this silo"


def test_a_study_with_another_node_key_is_refused(consortium: Consortium) -> None:
    config = load(consortium.silos[0])
    (config.folder / "node.key").unlink()
    write_secret(config.folder / "node.key", key_pem(generate_node_key()))
    message = refused(config, study_file(consortium), NotApproved)
    assert message == "the study lists another node key for this silo"


@pytest.mark.parametrize("name", ["sign.key", "node.key"])
@pytest.mark.parametrize("damage", ["missing", "readable by others", "cut"])
def test_an_unusable_key_is_refused_with_its_file(
    consortium: Consortium, name: str, damage: str
) -> None:
    config = load(consortium.silos[0])
    path = config.folder / name
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        os.truncate(path, 10)
    else:
        path.chmod(0o640)
    assert str(path) in refused(config, study_file(consortium), UnusableKey)


@pytest.mark.parametrize("count", [12, 39, 41])
def test_another_number_of_records_than_the_study_says_is_refused(
    consortium: Consortium, count: int
) -> None:
    config = load(consortium.silos[0])
    write_data(csv_path(config.data), SMALL_TASK, count, seed=0)
    message = refused(config, study_file(consortium), BadRecords)
    assert message.startswith(f"{csv_path(config.data)}: {count} people, the study says 40")


def test_fewer_people_than_the_policy_asks_for_are_refused(consortium: Consortium) -> None:
    config = with_policy(consortium, minimum_people=41)
    message = refused(config, study_file(consortium), OutsidePolicy)
    assert message == (
        "it is about 40 of your people, your policy asks for at least 41 (minimum_people)"
    )


def test_exactly_as_many_people_as_the_policy_asks_for_are_enough(consortium: Consortium) -> None:
    config = with_policy(consortium, minimum_people=40)
    approve(config, review(config, study_file(consortium)), NOW)
    assert approvals(config) == [consortium.study.identity]


def test_bad_data_is_refused_with_file_row_and_column(consortium: Consortium) -> None:
    config = load(consortium.silos[0])
    lines = csv_path(config.data).read_text().splitlines()
    lines[7] = "old,0,1"
    csv_path(config.data).write_text("\n".join(lines))
    message = refused(config, study_file(consortium), BadRecords)
    assert message == f"{csv_path(config.data)}: row 8, column 'age': not a number: 'old'"


def test_a_study_beyond_the_policy_is_refused_and_not_recorded(consortium: Consortium) -> None:
    config = with_policy(consortium, epsilon=1.9)
    message = refused(config, study_file(consortium), BudgetExhausted)
    assert "epsilon=1.9" in message
    assert approvals(config) == []


def test_approvals_reserve_whole_studies_until_the_policy_is_reached(
    consortium: Consortium,
) -> None:
    """Two studies of μ each are √2·μ: just inside one policy, just outside another."""
    study = consortium.study
    event = study.mechanism().event(study.participant(study.silos[0]))
    both = epsilon_of([(event, 10)], study.target.delta)
    first, second = study_file(consortium), another_study(study_file(consortium), "second")

    tight = with_policy(consortium, epsilon=both * (1 - 1e-6), index=0)
    approve(tight, review(tight, first), NOW)
    refused(tight, second, BudgetExhausted)
    assert approvals(tight) == [study.identity]

    roomy = with_policy(consortium, epsilon=both * (1 + 1e-6), index=0)
    approve(roomy, review(roomy, second), NOW)
    assert len(approvals(roomy)) == 2
    refused(roomy, another_study(first, "third"), BudgetExhausted)


def test_an_unused_reservation_still_counts(consortium: Consortium) -> None:
    """A study that never ran keeps its budget: it still may."""
    config = approved_silo(consortium)
    refused(config, another_study(study_file(consortium), "second"), BudgetExhausted)


def test_approving_twice_is_refused(consortium: Consortium) -> None:
    config = with_policy(consortium, epsilon=6.0)
    approve(config, review(config, study_file(consortium)), NOW)
    message = refused(config, study_file(consortium), NotApproved)
    assert message == "this study is already approved"
    assert len(approvals(config)) == 1


def test_an_error_while_freezing_leaves_no_approval(
    consortium: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load(consortium.silos[0])
    reviewed = review(config, study_file(consortium))

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full_disk)
        with pytest.raises(OSError, match="No space left"):
            approve(config, reviewed, NOW)
    assert approvals(config) == []
    approve(config, reviewed, NOW)
    assert approvals(config) == [consortium.study.identity]


def test_a_study_that_cannot_be_calibrated_is_not_approved(consortium: Consortium) -> None:
    """A δ below what integer noise costs: no mechanism exists, so there is nothing to approve."""
    config = load(consortium.silos[0])
    content = study_file(consortium).replace(b"delta = 1e-05", b"delta = 1e-300")
    assert parse_study(content).target.delta == 1e-300
    with pytest.raises((SiloError, ValueError), match="delta=1e-300"):
        approve(config, review(config, content), NOW)
    assert approvals(config) == []


def test_what_is_charged_for_a_silo_follows_from_its_own_number_of_records(
    consortium: Consortium,
) -> None:
    """One noise for all; the event of a larger silo is smaller by about (n_min/n)²."""
    mechanism = consortium.study.mechanism()
    small, large = (Participant(records, consortium.study.target) for records in (40, 80))
    assert mechanism.event(large).mu == pytest.approx(mechanism.event(small).mu / 2, rel=1e-3)
