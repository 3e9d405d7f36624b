"""A complaint in plain language: whose report is missing, and who has to explain it.

Also what a coordinator kept of a void round, which is nobody's complaint: who dropped whose report.
"""

from pathlib import Path

from google.protobuf.json_format import Parse, ParseError
from silomix_core.study.study import Study
from silomix_proto import channel_pb2
from silomix_protocol.host.failure import Failure
from silomix_protocol.keys import ForgedSignature
from silomix_protocol.rounds.complaints import ComplaintFinding, check_complaint, check_evidence
from silomix_protocol.rounds.descriptor import RefusedDescriptor
from silomix_protocol.rounds.statements import BrokenChain

_UNKNOWN = (
    "not said: only the copy of the silo's operator (silo's state/complaints/) has its digests and "
    "the statements of the mixes"
)


_DROPPED = "a mix's statement that it dropped it, and the silo's signature, traced back"
_RECEIPT = "the first mix's receipt, and a list without it that all mixes signed"
_PROVEN = "the onion in the first mix's receipt, opened with the keys that the mixes disclosed"


def read_complaint(path: Path, study: Study) -> list[str]:
    """What the complaint in this file shows; a Failure if it shows nothing."""
    try:
        complaint = Parse(path.read_text(encoding="utf-8"), channel_pb2.Complaint())
    except (UnicodeDecodeError, ParseError) as error:
        raise Failure(f"{path}: not a complaint") from error
    try:
        if complaint.signature:
            return [describe_complaint(check_complaint(complaint, study))]
        return [_dropped(finding) for finding in check_evidence(complaint, study)]
    except (BrokenChain, ForgedSignature, RefusedDescriptor) as error:
        raise Failure(f"{path}: shows nothing about this study: {error}") from error


def describe_complaint(finding: ComplaintFinding) -> str:
    shown = _PROVEN if finding.proven else _RECEIPT
    return _lines(finding, shown, finding.accused or _UNKNOWN)


def _dropped(finding: ComplaintFinding) -> str:
    """Describe a drop: mix or silo is to blame, and the copy of the silo's operator tells which."""
    return _lines(finding, _DROPPED, f"{finding.accused}, or {finding.silo} sealed it wrongly")


def _lines(finding: ComplaintFinding, shown: str, accused: str) -> str:
    return "\n".join(
        [
            f"missing          the report of {finding.silo} in round {finding.round}",
            f"shown by         {shown}",
            f"must explain     {accused}",
        ]
    )
