"""What is promised to more than one record: a person in several silos, several people of one.

The promise of a study is about one record of one silo.  With full batches every noised sum is a
Gaussian mechanism, for which more is exact (Dong, Roth, Su 2022, arXiv 1905.02383v3):

- *a person who is a record of s silos*: the silos' transcripts, each with noise of its own, compose
  (Cor. 3.3): μ² = Σ μ_i².  Which of them asked what of whom may depend on the others' reports.
- *k people of one silo*: replaced one after the other they move a sum k times as far (Thm. 2.14):
  k·μ_i.

Phases hold different records.  The worst is counted: each silo's costliest phase, with as many
released integers as any has, and all k people in the same.  For drawn batches neither follows in
this form, and nothing is claimed.  All figures are at the δ that is asked for: figures at different
δ cannot be compared.
"""

from collections.abc import Sequence
from dataclasses import replace

from silomix_core.accounting.composition import Transcript, epsilon_of
from silomix_core.accounting.events import Scheme
from silomix_core.mechanism.mechanism import Mechanism, Participant


def in_two_silos(
    mechanism: Mechanism, one: Participant, other: Participant, delta: float
) -> float | None:
    """ε at this δ of somebody who is a record of both silos."""
    if not _is_gaussian(mechanism):
        return None
    return epsilon_of([*_worst(mechanism, one), *_worst(mechanism, other)], delta)


def several_people(
    mechanism: Mechanism, silo: Participant, people: int, delta: float
) -> float | None:
    """ε at this δ of so many people of one silo together."""
    if not _is_gaussian(mechanism):
        return None
    moved = [
        (replace(event, sensitivity=people * event.sensitivity), count)
        for event, count in _worst(mechanism, silo)
    ]
    return epsilon_of(moved, delta)


def most_exposed(mechanism: Mechanism, silos: Sequence[Participant]) -> Participant:
    """The silo whose reports tell most about a record."""
    return max(set(silos), key=lambda each: _squares(_worst(mechanism, each)))


def _is_gaussian(mechanism: Mechanism) -> bool:
    return mechanism.minibatch.scheme is Scheme.FULL


def _worst(mechanism: Mechanism, silo: Participant) -> Transcript:
    """The silo's costliest transcript, filled up to the most events that any of its has."""
    transcripts = mechanism.different_transcripts(silo)
    costliest = max(transcripts, key=_squares)
    ((event, count),) = costliest
    most = max(each for ((_, each),) in transcripts)
    return [(event, count), (replace(event, sensitivity=0.0), most - count)]


def _squares(transcript: Transcript) -> float:
    return sum(count * event.mu**2 for event, count in transcript)
