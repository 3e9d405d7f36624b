"""The studies that a mix serves, and how long their reports are at its place in the chain."""

from collections.abc import Iterable
from pathlib import Path

from silomix_core.mechanism.report_format import report_bytes
from silomix_core.study.study import Study, StudyId
from silomix_protocol.rounds.onion import onion_bytes
from silomix_protocol.rounds.tokens import payload_bytes

from silomix_shuffler.batch import Batch
from silomix_shuffler.errors import WrongRound
from silomix_shuffler.round.round import Round
from silomix_shuffler.storage.spool import Spool


class ServedStudies:
    def __init__(self, mix: str, studies: Iterable[Study], bodies: Path) -> None:
        """The bodies of batches are files in `bodies`."""
        self._mix, self._bodies = mix, bodies
        self._studies = {study.identity: study for study in studies}
        self._lengths = {study.identity: self._onion_lengths(study) for study in studies}

    @property
    def identities(self) -> list[StudyId]:
        return list(self._studies)

    def find(self, identity: bytes) -> Study:
        study = self._studies.get(StudyId(identity))
        if study is None:
            raise WrongRound("this mix does not serve that study")
        return study

    def enrolling(self, silo: str) -> int:
        """How many of the studies enrol this silo."""
        return sum(study.silo(silo) is not None for study in self._studies.values())

    def serves_with(self, mix: str) -> bool:
        """Whether a study has that mix in its chain."""
        return any(mix == each.name for study in self._studies.values() for each in study.mixes)

    def batch_bytes(self, study: Study) -> int:
        """The bytes that a batch of this study takes on our disk."""
        return study.participants * self._lengths[study.identity][1]

    def round(self, study: Study, batch: Batch) -> Round:
        """A round of the study around this batch."""
        length_in, length_out = self._lengths[study.identity]
        spool = Spool(self._bodies / batch.descriptor.digest.hex(), length_out)
        return Round(study, place(study, self._mix), batch, spool, length_in, length_out)

    def _onion_lengths(self, study: Study) -> tuple[int, int]:
        """The bytes of a report when it arrives here, and when it leaves."""
        payload, hop = (
            payload_bytes(study, report_bytes(study.mechanism())),
            place(study, self._mix),
        )
        return onion_bytes(payload, study, hop), onion_bytes(payload, study, hop + 1)


def place(study: Study, mix: str) -> int:
    """The place of this mix in the study's chain, from 0."""
    return [each.name for each in study.mixes].index(mix)
