"""Complaints of silos whose report is missing, kept for whoever has to explain it.

Each is a file state/complaints/STUDY-ROUND-ATTEMPT-PLACE.json that `silomix study complaint` reads.
"""

from pathlib import Path

from google.protobuf.json_format import MessageToJson
from silomix_core.study import Study
from silomix_proto import channel_pb2
from silomix_protocol import logs
from silomix_protocol.complaints import check_complaint
from silomix_protocol.descriptor import Descriptor, RefusedDescriptor
from silomix_protocol.keys import ForgedSignature
from silomix_protocol.statements import BrokenChain

from silomix_server.errors import UnwelcomeFrame

FOLDER = "complaints"


class ComplaintBox:
    def __init__(self, study: Study, state: Path) -> None:
        self._study = study
        self._folder = state / FOLDER

    def put(self, silo: str, descriptor: Descriptor, complaint: channel_pb2.Complaint) -> None:
        """Keep the complaint of `silo` about this round; UnwelcomeFrame if it shows nothing."""
        for known in ("trail", "chain"):  # which report it was is not the server's to know
            complaint.ClearField(known)
        if complaint.descriptor != descriptor.to_wire():
            raise UnwelcomeFrame("a complaint about another round")
        try:
            finding = check_complaint(complaint, self._study)
        except (BrokenChain, ForgedSignature, RefusedDescriptor) as error:
            raise UnwelcomeFrame(f"a complaint that shows nothing: {error}") from error
        if finding.silo != silo:
            raise UnwelcomeFrame("a complaint of somebody else")
        path = self._path(descriptor, silo)
        _write(path, complaint)
        logs.warning(
            "complaint_received",
            round=finding.round,
            silo=silo,
            file=path,
            hint="the silo's operator can say where its report went missing",
        )

    def _path(self, descriptor: Descriptor, silo: str) -> Path:
        place = self._study.places[silo]
        name = f"{self._study.short_id}-{descriptor.round}-{descriptor.attempt}-{place}.json"
        return self._folder / name


def _write(path: Path, complaint: channel_pb2.Complaint) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_text(MessageToJson(complaint), encoding="utf-8")
