"""Complaints on the command line: listed by a silo, checked by anybody."""

from pathlib import Path

from google.protobuf.json_format import MessageToJson, Parse
from silomix_client.config.silo_config import load
from silomix_client.rounds.complaint_files import save
from silomix_lab.consortium.create import Consortium
from silomix_proto import channel_pb2
from silomix_protocol.rounds.complaints import sign_complaint
from silomix_protocol.rounds.statements import sign_receipt
from silomix_server.silos.complaint_box import ComplaintBox
from support.coordinators import listed, report_of, signer
from support.operator_commands import one_line_error, silomix
from support.rounds import make_round
from support.silos import approved_silo


def complained(made: Consortium) -> tuple[Path, Path]:
    """Silo 1's report is missing from round 1: the file at the server, and its operator's copy."""
    (made.server.parent / "state").mkdir()
    round_ = make_round(made.study, signer(made, "server"))
    onions = [round_.seal(round_.payload(report_of(made.study, value))) for value in range(3)]
    batch = listed(made, round_, [each.sealed for each in onions[1:]])
    receipt = sign_receipt(round_.digest, 0, onions[0].trail[0], signer(made, "mix-1"))
    complaint = sign_complaint(
        round_.descriptor, 0, receipt, batch.committed, signer(made, "silo-1")
    )
    box = ComplaintBox(made.study, made.server.parent / "state")
    box.put("silo-1", round_.descriptor, complaint)
    (at_server,) = (made.server.parent / "state" / "complaints").iterdir()
    complaint.trail.extend(onions[0].trail)
    complaint.chain.extend(batch.chain)
    folder = load(made.silos[0]).state / "complaints"
    return at_server, save(complaint, round_.descriptor, folder)


def test_anybody_can_check_a_complaint_with_the_study_file(consortium: Consortium) -> None:
    sent, kept = complained(consortium)
    study = consortium.folder / "study.toml"
    for path, explain in ((sent, "not said"), (kept, "mix-1")):
        result = silomix("study", "complaint", study, path)
        assert result.returncode == 0, result.stderr
        missing, *_, last = result.stdout.splitlines()
        assert missing.startswith("missing          the report of silo-1 in round 1")
        assert last.startswith(f"must explain     {explain}")


def test_a_complaint_that_shows_nothing_is_one_line(consortium: Consortium) -> None:
    sent, kept = complained(consortium)
    study = consortium.folder / "study.toml"
    text = kept.read_text()
    other = Parse(text, channel_pb2.Complaint())
    other.trail[0] = bytes(32)
    kept.write_text(MessageToJson(other))
    error = one_line_error(silomix("study", "complaint", study, kept))
    assert "shows nothing about this study: the digests are not those of the report" in error
    sent.write_text("{")
    assert one_line_error(silomix("study", "complaint", study, sent)).endswith("not a complaint")
    error = one_line_error(silomix("study", "complaint", study, sent.parent / "none.json"))
    assert "No such file" in error


def test_a_silo_lists_its_complaints(consortium: Consortium) -> None:
    approved_silo(consortium)
    none = silomix("silo", "complaints", consortium.silos[0])
    assert none.stdout == "no report of this silo went missing\n"
    _, own = complained(consortium)
    listed = silomix("silo", "complaints", consortium.silos[0])
    assert listed.stdout == (
        f"study {consortium.study.short_id} test, round 1: mix-1 has to explain it; {own}\n"
    )
