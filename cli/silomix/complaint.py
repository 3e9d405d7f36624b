"""A complaint in plain language: whose report is missing, and who has to explain it."""

from pathlib import Path

from google.protobuf.json_format import Parse, ParseError
from silomix_core.study import Study
from silomix_proto import channel_pb2
from silomix_protocol.complaints import Finding, check_complaint
from silomix_protocol.descriptor import RefusedDescriptor
from silomix_protocol.keys import ForgedSignature
from silomix_protocol.statements import BrokenChain

from silomix.failures import Failure

_UNKNOWN = (
    "not said: only the copy of the silo's operator (silo's state/complaints/) has its digests and "
    "the statements of the mixes"
)


def read_complaint(path: Path, study: Study) -> Finding:
    """What the complaint in this file shows; a Failure if it shows nothing."""
    try:
        complaint = Parse(path.read_text(encoding="utf-8"), channel_pb2.Complaint())
    except (UnicodeDecodeError, ParseError) as error:
        raise Failure(f"{path}: not a complaint") from error
    try:
        return check_complaint(complaint, study)
    except (BrokenChain, ForgedSignature, RefusedDescriptor) as error:
        raise Failure(f"{path}: shows nothing about this study: {error}") from error


def describe_complaint(finding: Finding) -> str:
    return "\n".join(
        [
            f"missing          the report of {finding.silo} in round {finding.round}",
            "shown by         the first mix's receipt, and a list without it that all mixes signed",
            f"must explain     {finding.accused or _UNKNOWN}",
        ]
    )
