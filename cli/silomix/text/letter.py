"""A study as a letter to the person who has to say yes or no to it: short, what matters first.

The author of the study may be hostile to its reader.  Texts that the author chose stand in quotes,
are printable and short (`fields`), and share no line with a figure; columns and changes are shown
in full up to a bound for each kind, so that nothing is pushed out by a crowd of something else.
"""

from math import ceil, exp

from silomix_client.approval.review import Offer
from silomix_client.config.policy_rules import names_persons
from silomix_client.config.silo_config import SiloConfig
from silomix_core.claims.groups import in_two_silos, most_exposed, several_people
from silomix_core.mechanism.mechanism import Mechanism, Participant
from silomix_core.study.study import Mix, Server, Study
from silomix_core.study.weighting import Weighting
from silomix_core.task.task import Feature, Task
from silomix_protocol.keys import fingerprint

from silomix.text.filled import filled
from silomix.text.study_and_ledger import (
    FAMILY,
    aggregation_in_words,
    clip_in_words,
    counted,
    gate_in_words,
    tokens_in_words,
)
from silomix.text.study_diff import changes

_WIDTH = 92
_MOST_COLUMNS = 60
_MOST_HOSPITALS = 30
_GUESSES = ((5, 100), (1, 100), (1, 1000), (1, 10_000), (1, 100_000), (1, 1_000_000))


def letter(offer: Offer, config: SiloConfig) -> str:
    """The letter that `silomix silo review` and `silomix silo approve` print."""
    sections = [
        [f"The study {_quoted(offer.study.name)} asks for records of {config.name}."],
        _verdict(offer),
        ["What it asks", *_asks(offer)],
        ["What it costs", *_costs(offer)],
        ["Who takes part", *_parties(offer, config)],
        _differences(offer),
        _know(offer),
        ["Its hash (the study is this file and no other)", f"  {offer.study.identity.hex()}"],
    ]
    return "\n\n".join("\n".join(section) for section in sections if section)


def _verdict(offer: Offer) -> list[str]:
    reasons = [*offer.objections, *([offer.data_problem] if offer.data_problem else [])]
    if not reasons:
        return ["It stays within your policy. Whether you approve it is yours to decide."]
    return ["IT CANNOT BE APPROVED:", *(line for reason in reasons for line in _item(reason))]


def _asks(offer: Offer) -> list[str]:
    study, own = offer.study, offer.asked.participant
    columns = [_column(feature) for feature in study.task.features]
    shown = ", ".join(columns[:_MOST_COLUMNS])
    if more := len(columns) - _MOST_COLUMNS:
        shown += f" and {more} more, which [[task.features]] of its file lists" if more > 0 else ""
    others = counted(len(study.silos) - 1, "other hospital", "other hospitals")
    lines = [
        *_text(f"To learn {_quoted(study.task.label)} ({_kind(study.task)})"),
        *_text(f"from {counted(len(columns), 'column', 'columns')} of your data: {shown}."),
        *_products(study.task),
        *_text(
            f"It is about {counted(own.records, 'person', 'people')} of yours, together with "
            f"{others}, in {counted(study.rounds, 'round', 'rounds')} ({study.algorithm}). Their "
            "data is frozen when you approve and stays here; in a round one sum over them leaves, "
            "with noise. Of all hospitals' sums the server takes the "
            f"{study.aggregation.rule.value}. {_counting(study, own)}"
        ),
    ]
    if not names_persons(study.task):
        lines += _text(
            "Every row of your data counts as one person, since the study names no column that "
            "tells persons apart. Somebody with several rows is protected less than it says here."
        )
    return lines


def _counting(study: Study, own: Participant) -> str:
    """How much a person of this hospital counts beside the others'."""
    if study.weighting is Weighting.RECORDS:
        return "All people count alike, whatever hospital they are of."
    if study.weighting is Weighting.NAMED and len({silo.weight for silo in study.silos}) > 1:
        return f"Your hospital counts {own.weight:.3g} times as much as the average one."
    average = sum(silo.records for silo in study.silos) / len(study.silos)
    return (
        "All hospitals count alike, whatever their size: each of your people "
        f"{average / own.records:.3g} times as much as the average one."
    )


def _products(task: Task) -> list[str]:
    """The lines on products: no further column, but more about a person than the columns alone."""
    if not task.interactions:
        return []
    named = [f"{_quoted(each.first)} × {_quoted(each.second)}" for each in task.interactions]
    shown = ", ".join(named[:_MOST_COLUMNS])
    if (more := len(named) - _MOST_COLUMNS) > 0:
        shown += f" and {more} more, which interactions in [task] of its file lists"
    made = counted(len(named), "product", "products")
    return _text(f"The model also learns from {made} of these columns, made here: {shown}.")


def _costs(offer: Offer) -> list[str]:
    study, own, lifetime = offer.study, offer.asked.participant, offer.budget.target
    together = offer.epsilon_together
    total = "" if together is None else f", with this study {together:.4g}"
    return [
        *_text(
            f"Epsilon {offer.epsilon:.4g} at your policy's delta {lifetime.delta:g}, over the "
            f"whole study{_less_than_promised(study, offer)}. It promises you epsilon "
            f"{own.target.epsilon:g} at delta {own.target.delta:g}."
        ),
        *_text(
            f"Reserved so far: epsilon {offer.epsilon_reserved:.4g}{total}; your policy allows "
            f"{lifetime.epsilon:g} for all studies together ({offer.budget.accountant.value} "
            "accountant)."
        ),
        *_text(f"In words: {in_words(offer.epsilon, lifetime.delta)}"),
        *_several(offer),
    ]


def _several(offer: Offer) -> list[str]:
    """What holds for a family, and for somebody who is a patient of another hospital, too."""
    study, own, delta = offer.study, offer.asked.participant, offer.budget.target.delta
    mechanism = study.mechanism()
    family = several_people(mechanism, own, FAMILY, delta)
    if family is None:
        return []
    others = [study.participant(silo) for silo in study.silos]
    others.remove(own)
    told = ""
    if others:
        twice = in_two_silos(mechanism, own, most_exposed(mechanism, others), delta)
        told = f", somebody who is another hospital's patient, too, {twice:.4g}"
    return _text(
        f"That is about one person of yours. At the same delta {FAMILY} people together (a family) "
        f"have epsilon {family:.4g}{told}."
    )


def in_words(epsilon: float, delta: float) -> str:
    """(ε, δ) as a bound on guessing: a test of level α has power at most e^ε·α + δ."""
    for chance, of in _GUESSES:
        power = exp(epsilon) * chance / of + delta
        if power <= 0.5:
            return (
                "with all that this silo sends in this study, a guess about one person that is "
                f"right {chance} times in {of} by chance is right at most {ceil(power * of)} times "
                f"in {of}, even if server, mixes and all other hospitals work together."
            )
    return "this is so much that nobody is protected in a way that could be put into words."


def _less_than_promised(study: Study, offer: Offer) -> str:
    """Why a silo may lose less than it was promised: one noise scale serves the neediest silo."""
    own = offer.asked.participant
    if study.mechanism().epsilon(own) >= 0.99 * own.target.epsilon:
        return ""
    if len({(silo.weight, silo.target) for silo in study.silos}) > 1:
        return " (less than promised: another silo needs more noise)"
    if own.records > min(silo.records for silo in study.silos):
        return " (less than promised: the smallest silo decides the noise)"
    return ""


def _parties(offer: Offer, config: SiloConfig) -> list[str]:
    study = offer.study
    if offer.earlier:
        advice = "Compare the keys of parties that you do not know yet"
    else:
        advice = "This is the first study here: compare the keys of all parties"
    others = [silo for silo in study.silos if silo.name != config.name]
    hospitals = ", ".join(f"{silo.name} ({silo.records})" for silo in others[:_MOST_HOSPITALS])
    if len(others) > _MOST_HOSPITALS:
        hospitals += f" and {len(others) - _MOST_HOSPITALS} more"
    lines = _text(f"{advice} with what they tell you by phone or on paper.")
    server, addresses = (
        study.server,
        f"{study.server.fleet_address}, {study.server.channel_address}",
    )
    lines += _party("server", server.name, addresses, server.sign_key, offer)
    for mix in study.mixes:
        lines += _party("mix", mix.name, mix.address, mix.sign_key, offer)
    return [
        *lines,
        *_text(f"hospitals and their numbers of people: {hospitals}"),
        *_text("Your own keys are the ones that the study lists for you."),
    ]


def _party(role: str, name: str, address: str, key: bytes, offer: Offer) -> list[str]:
    return [
        f"  {role} {name} at {address}",
        f"    key {fingerprint(key).hex()}",
        *([f"    {known}"] if (known := _known(name, key, offer)) else []),
    ]


def _known(name: str, key: bytes, offer: Offer) -> str:
    """What earlier studies say about this key, or about another one under this name."""
    for earlier in reversed(offer.earlier):
        study = earlier.study
        parties: tuple[Server | Mix, ...] = (study.server, *study.mixes)
        for party in parties:
            if party.sign_key == key:
                return f"the key that you know from study {study.short_id} ({earlier.at[:10]})"
            if party.name == name:
                return (
                    f"ANOTHER KEY than in study {study.short_id}, which you approved on "
                    f"{earlier.at[:10]}: ask why"
                )
    return "a key that no study had which you approved before" if offer.earlier else ""


def _differences(offer: Offer) -> list[str]:
    """The differences from the last study of the same name; none if that is this very study."""
    for earlier in reversed(offer.earlier):
        if earlier.study.identity == offer.study.identity:
            return []
        if earlier.study.name == offer.study.name:
            found = changes(earlier.content, offer.content)
            title = f"What differs from the study of that name of {earlier.at[:10]}"
            lines = [line for change in found for line in _item(change)]
            return [f"{title} ({earlier.study.short_id})", *lines]
    return []


def _know(offer: Offer) -> list[str]:
    """The points in which the study is weaker than it could be, or out of the ordinary."""
    study, mechanism = offer.study, offer.study.mechanism()
    points = [*_about_hiding(study), *_about_rounds(study, mechanism)]
    return ["What to know", *(line for point in points for line in _item(point))] if points else []


def _about_hiding(study: Study) -> list[str]:
    points = []
    if len(study.mixes) == 1:
        points.append(
            "there is one mix: if it works with the server, they know which report is yours (what "
            "it tells about a person is bounded all the same)"
        )
    points.append(_among_how_many(study.batching.minimum))
    if not study.batching.gate:
        points.append(f"release gate {gate_in_words(study)}")
    if not study.batching.tokens:
        points.append(f"tokens {tokens_in_words(study)}")
    return points


def _among_how_many(least: int) -> str:
    """Who has to work together to single out a report: those who sent all the others."""
    if least == 1:
        return "a batch may consist of one report, which then hides among no others"
    others = "the other hospital" if least == 2 else f"the {least - 1} other hospitals"
    return (
        f"your report hides among the others of its batch, which may be as few as {least - 1}: a "
        f"server that works with {others} of such a batch, who know their own reports, sees which "
        "one is yours (what it tells about a person is bounded all the same, by the epsilon above)"
    )


def _about_rounds(study: Study, mechanism: Mechanism) -> list[str]:
    points = [f"reports are combined by their {aggregation_in_words(study)}"]
    if (clipped := clip_in_words(study)) is not None:
        points.append(clipped)
    if study.held_out:
        points.append(
            f"{100 * study.held_out:g} % of your people, drawn in secret, are kept from training; "
            "a last round asks, with noise, how many of them the model gets right"
        )
    if any(phase.check_in for phase in mechanism.phases):
        points.append("your hospital takes part in one round, which nobody but it knows")
    return points


def _kind(task: Task) -> str:
    if task.classes is not None:
        return f"one of {task.classes} classes"
    return "a number" if task.loss.is_regression else "yes or no"


def _column(feature: Feature) -> str:
    """A column's name, and what decides where it is found: a name alone may say anything."""
    parts = [f"{feature.count} columns"] if feature.count > 1 else []
    places = " ".join([*feature.codes, *map(str, feature.concepts)])
    parts += [text for text in (feature.unit, places) if text]
    name = _quoted(feature.name)
    return f"{name} ({', '.join(parts)})" if parts else name


def _quoted(text: str) -> str:
    """Quote a text of the study's author so that it cannot end its quotes."""
    return '"' + text.replace('"', "'") + '"'


def _text(text: str) -> list[str]:
    return filled(text, "  ", "  ", _WIDTH)


def _item(text: str) -> list[str]:
    return filled(text, "  - ", "    ", _WIDTH)
