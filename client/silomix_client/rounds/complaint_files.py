"""The operator's copies of complaints: state/complaints/ROUND-D.json, one for each missing report.

A copy has the digests of the report at every hop and what the mixes stated, which the complaint
that was sent has not: it names who has to explain the loss.  Who shows it also shows which report
it was, were the batch opened after all.
"""

from dataclasses import dataclass
from pathlib import Path

from google.protobuf.json_format import MessageToJson, Parse, ParseError
from silomix_core.study.study import Study, StudyId
from silomix_proto import channel_pb2
from silomix_protocol.host.durable import make_folder, write_durably
from silomix_protocol.rounds.complaints import ComplaintFinding, check_complaint
from silomix_protocol.rounds.descriptor import Descriptor, RefusedDescriptor, study_of

from silomix_client.errors import SiloError

FOLDER = "complaints"  # in the silo's state


@dataclass(frozen=True, slots=True)
class SavedComplaint:
    path: Path
    study: StudyId
    complaint: channel_pb2.Complaint

    def finding(self, study: Study) -> ComplaintFinding:
        """Who lost the report, checked as anybody would; an error if nothing is shown."""
        return check_complaint(self.complaint, study)


def save(copy: channel_pb2.Complaint, descriptor: Descriptor, folder: Path) -> Path:
    """Write the operator's copy; only one with the mixes' statements replaces what is there."""
    make_folder(folder)
    path = folder / f"{descriptor.round}-{descriptor.digest.hex()[:12]}.json"
    if copy.chain or not path.exists():
        write_durably(path, MessageToJson(copy).encode("utf-8"))
    return path


def saved(folder: Path) -> list[SavedComplaint]:
    """All copies in the folder, those of earlier rounds first."""
    paths = sorted(folder.glob("*.json"), key=lambda path: (len(path.name), path.name))
    return [_read(path) for path in paths]


def _read(path: Path) -> SavedComplaint:
    try:
        complaint = Parse(path.read_text(encoding="utf-8"), channel_pb2.Complaint())
        return SavedComplaint(path, study_of(complaint.descriptor), complaint)
    except (OSError, UnicodeDecodeError, ParseError, RefusedDescriptor) as error:
        raise SiloError(f"{path}: not a complaint: {error}") from error
