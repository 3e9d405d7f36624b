"""What a round asks: the query's bytes, held against the descriptor and the approved study.

Stands between the round channel and the update.  The number of local steps, their size and whether
there are control variates follow from the study; a query can only say where to begin, and with
control variates what their mean is and which rounds came to nothing.
"""

from hashlib import sha256

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from silomix_core.mechanism import Mechanism
from silomix_core.reporting import Question
from silomix_core.study import Study
from silomix_proto import round_pb2
from silomix_protocol.descriptor import Descriptor

from silomix_client.errors import RefusedQuery

_SLACK = 1 + 1e-9  # for what the server rounds
_ROUND_BYTES = 3  # of a round number as it is encoded: studies have a million rounds at most


def largest_query(study: Study) -> int:
    """Bytes of the longest query that a study can have."""
    if not study.has_control:
        return 8 * study.task.dimension + 64
    return 16 * study.task.dimension + _ROUND_BYTES * study.rounds + 64


class QueryReader:
    """Reads the queries of one study that are put to one silo."""

    def __init__(self, silo: str, study: Study, mechanism: Mechanism) -> None:
        self._silo, self._study, self._mechanism = silo, study, mechanism

    def read(self, descriptor: Descriptor, query: bytes) -> tuple[Question, frozenset[int]]:
        """What is asked, and which rounds were void so far; RefusedQuery for anything else."""
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
            if message.control or message.void:
                raise RefusedQuery("the query says more than a point")
            return Question(descriptor.round, point), frozenset()
        control = self._control(message.control, descriptor.round)
        return Question(descriptor.round, point, control), _void(message, descriptor.round)

    def _has_control(self, round_number: int) -> bool:
        """Not when the model is evaluated."""
        if not self._study.has_control:
            return False
        return self._mechanism.phases[self._mechanism.phase_of(round_number)].control

    def _control(self, encoded: bytes, round_number: int) -> NDArray[np.float64]:
        """A mean of control variates: no farther out than a mean of noised gradients can be."""
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
    """The query, if its fields are all that it says."""
    try:
        message = round_pb2.Query.FromString(query)
    except DecodeError as error:
        raise RefusedQuery("the query cannot be read") from error
    known = round_pb2.Query(point=message.point, control=message.control, void=message.void)
    if known.SerializeToString(deterministic=True) != query:
        raise RefusedQuery("the query says more than a point")
    return message


def _void(message: round_pb2.Query, round_number: int) -> frozenset[int]:
    """The rounds that came to nothing: earlier ones, each named once and in order."""
    void = list(message.void)
    if void != sorted({each for each in void if 1 <= each < round_number}):
        raise RefusedQuery("the void rounds are not earlier ones in order")
    return frozenset(void)
