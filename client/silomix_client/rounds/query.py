"""What a round asks: the query's bytes, held against the descriptor and the approved study.

Stands between the round channel and the update.  The number of local steps, their size and whether
there are control variates follow from the study; a query can only say where to begin, and with
control variates what their mean is.
"""

from hashlib import sha256

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from silomix_core.mechanism.mechanism import Mechanism
from silomix_core.reports.reporter import RoundQuery
from silomix_core.study.study import Study
from silomix_proto import round_pb2
from silomix_protocol.rounds.descriptor import Descriptor

from silomix_client.errors import RefusedQuery

_SLACK = 1 + 1e-9  # for what the server rounds


def largest_query(study: Study) -> int:
    """The length in bytes of the longest query that a study can have."""
    vectors = 2 if study.has_control else 1
    return 8 * vectors * study.task.dimension + 64


class QueryReader:
    """Reads the queries of one study that are put to one silo."""

    def __init__(self, silo: str, study: Study, mechanism: Mechanism) -> None:
        self._silo, self._study, self._mechanism = silo, study, mechanism

    def read(self, descriptor: Descriptor, query: bytes) -> RoundQuery:
        """Read the query of a round; RefusedQuery for anything outside the study."""
        if descriptor.study != self._study.identity:
            raise RefusedQuery("the round belongs to another study")
        if self._silo not in descriptor.silos:
            raise RefusedQuery("the round does not wait for this silo")
        if sha256(query).digest() != descriptor.query:
            raise RefusedQuery("the query is not the one that the descriptor names")
        message = _parsed(query)
        point = self._vector(message.point, "point")
        radius = self._study.radius * _SLACK
        # Also false for NaN; the largest coordinate first, since a square may overflow.
        if not (np.abs(point).max() <= radius and np.linalg.norm(point) <= radius):
            raise RefusedQuery("the point lies outside the study's ball")
        if not self._has_control(descriptor.round):
            if message.control:
                raise RefusedQuery("the query says more than a point")
            return RoundQuery(descriptor.round, point)
        control = self._control(message.control, descriptor.round)
        return RoundQuery(descriptor.round, point, control)

    def _has_control(self, round_number: int) -> bool:
        """Whether a round's query has a mean of control variates; not in an evaluation."""
        if not self._study.has_control:
            return False
        return self._mechanism.phases[self._mechanism.phase_of(round_number)].control

    def _control(self, encoded: bytes, round_number: int) -> NDArray[np.float64]:
        """Read the mean of control variates; refuse one that noise and clip do not allow."""
        control = self._vector(encoded, "mean of the control variates")
        bound = self._mechanism.largest_gradient(self._mechanism.phase_of(round_number)) * _SLACK
        if not np.abs(control).max() <= bound:  # also refuses NaN
            raise RefusedQuery("the mean of the control variates is none that noise and clip allow")
        return control

    def _vector(self, encoded: bytes, name: str) -> NDArray[np.float64]:
        if len(encoded) != 8 * self._study.task.dimension:
            raise RefusedQuery(f"the {name} has another dimension than the study")
        return np.frombuffer(encoded, dtype="<f8").astype(np.float64)


def _parsed(query: bytes) -> round_pb2.Query:
    """Parse the query, or refuse one that says more than its fields."""
    try:
        message = round_pb2.Query.FromString(query)
    except DecodeError as error:
        raise RefusedQuery("the query cannot be read") from error
    known = round_pb2.Query(point=message.point, control=message.control)
    if known.SerializeToString(deterministic=True) != query:
        raise RefusedQuery("the query says more than a point")
    return message
