"""What is promised to more than one record: a person in several silos, several people of one.

The promise of a study is about one record of one silo.  With full batches every noised sum is a
Gaussian mechanism, for which more is exact (Dong, Roth, Su 2022, arXiv 1905.02383v3):

- *a person who is a record of s silos*: the silos' transcripts, each with noise of its own, compose
  (Cor. 3.3): μ² = Σ μ_i².  Which of them asked what of whom may depend on the others' reports.
- *k people of one silo*: replaced one after the other they move a sum k times as far (Thm. 2.14):
  k·μ_i.

Phases hold different records.  The worst is counted: each silo's costliest phase, all k people in
the same.  For drawn batches neither follows in this form, and nothing is claimed.
"""

from collections.abc import Sequence
from dataclasses import replace

from silomix_core.accounting.composition import Transcript, epsilon_of
from silomix_core.accounting.events import Scheme
from silomix_core.mechanism.mechanism import Mechanism, Participant


def in_several_silos(mechanism: Mechanism, silos: Sequence[Participant]) -> float | None:
    """ε of somebody who is a record of each of these silos, at the largest of their δ."""
    if not _is_gaussian(mechanism):
        return None
    together = [pair for silo in silos for pair in _costliest(mechanism, silo)]
    return epsilon_of(together, max(each.target.delta for each in silos))


def several_people(mechanism: Mechanism, silo: Participant, people: int) -> float | None:
    """ε of so many people of one silo together, at its δ."""
    if not _is_gaussian(mechanism):
        return None
    moved = [
        (replace(event, sensitivity=people * event.sensitivity), count)
        for event, count in _costliest(mechanism, silo)
    ]
    return epsilon_of(moved, silo.target.delta)


def most_exposed(
    mechanism: Mechanism, silos: Sequence[Participant], count: int
) -> list[Participant]:
    """The `count` silos whose reports tell most about a record."""
    return sorted(silos, key=lambda each: -_squares(_costliest(mechanism, each)))[:count]


def _is_gaussian(mechanism: Mechanism) -> bool:
    return mechanism.minibatch.scheme is Scheme.FULL


def _costliest(mechanism: Mechanism, silo: Participant) -> Transcript:
    return max(mechanism.transcripts(silo), key=_squares)


def _squares(transcript: Transcript) -> float:
    return sum(count * event.mu**2 for event, count in transcript)
