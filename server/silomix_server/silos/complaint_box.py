"""Complaints of silos whose report is missing, kept for whoever has to explain it.

Each is a file state/complaints/STUDY-ROUND-ATTEMPT-PLACE.json that `silomix study complaint` reads;
with `dropped` instead of a place, what the mixes stated and disclosed about a void round.
"""

from pathlib import Path

from google.protobuf.json_format import MessageToJson
from silomix_core.study.study import Study
from silomix_proto import channel_pb2
from silomix_protocol.host import logs
from silomix_protocol.host.durable import make_folder, write_durably
from silomix_protocol.keys import ForgedSignature
from silomix_protocol.rounds.complaints import check_complaint
from silomix_protocol.rounds.descriptor import Descriptor, RefusedDescriptor
from silomix_protocol.rounds.statements import BrokenChain

from silomix_server.errors import UnwelcomeFrame

FOLDER = "complaints"
_OPERATORS = "trail", "chain", "endings", "onion"  # only in the copy of the silo's operator


class ComplaintBox:
    def __init__(self, study: Study, state: Path) -> None:
        self._study = study
        self._folder = state / FOLDER

    def put(self, silo: str, descriptor: Descriptor, complaint: channel_pb2.Complaint) -> None:
        """Keep the complaint of `silo` about this round; UnwelcomeFrame if it shows nothing."""
        for known in _OPERATORS:  # which report it was is not the server's to know
            complaint.ClearField(known)
        if complaint.descriptor != descriptor.to_wire() or not complaint.HasField("committed"):
            raise UnwelcomeFrame("a complaint about another round")
        try:
            finding = check_complaint(complaint, self._study)
        except (BrokenChain, ForgedSignature, RefusedDescriptor) as error:
            raise UnwelcomeFrame(f"a complaint that shows nothing: {error}") from error
        if finding.silo != silo:
            raise UnwelcomeFrame("a complaint of somebody else")
        path = self._path(descriptor, str(self._study.places[silo]))
        _write(path, complaint)
        logs.warning(
            "complaint_received",
            round=finding.round,
            silo=silo,
            file=path,
            hint="the silo's operator can say where its report went missing",
        )

    def keep(self, descriptor: Descriptor, evidence: channel_pb2.Complaint) -> Path:
        """Keep the evidence of whose reports were dropped in a void round; return its file."""
        path = self._path(descriptor, "dropped")
        _write(path, evidence)
        return path

    def _path(self, descriptor: Descriptor, what: str) -> Path:
        name = f"{self._study.short_id}-{descriptor.round}-{descriptor.attempt}-{what}.json"
        return self._folder / name


def _write(path: Path, complaint: channel_pb2.Complaint) -> None:
    make_folder(path.parent)
    write_durably(path, MessageToJson(complaint).encode("utf-8"))
