"""A study and a ledger in plain language, for the person who has to say yes or no."""

from dataclasses import replace
from typing import Any

from silomix_client.config.silo_config import MAIN, SiloConfig
from silomix_client.errors import InvalidSiloConfig
from silomix_client.ledger.entries import Approval
from silomix_client.ledger.ledger import Ledger
from silomix_client.rounds.complaint_files import SavedComplaint
from silomix_core.accounting.events import ADJACENCY, Scheme
from silomix_core.algorithms.catalogue import ALGORITHMS
from silomix_core.claims.central import central_figures
from silomix_core.claims.groups import in_two_silos, most_exposed, several_people
from silomix_core.mechanism.mechanism import Mechanism
from silomix_core.reports.aggregation import Rule
from silomix_core.study.costliest import costliest
from silomix_core.study.schedule import Draw
from silomix_core.study.study import Study
from silomix_core.study.weighting import Weighting
from silomix_core.task.task import Task
from silomix_protocol.keys import fingerprint

from silomix.text.data_spec import describe_specification
from silomix.text.filled import short, titled

FAMILY = 3  # people
_MOST_SILOS = 30
AGAINST = "one record replaced; holds against server, mixes and all other silos"


def describe_study(study: Study) -> str:
    mechanism = study.mechanism()
    sizes = [silo.records for silo in study.silos]
    shown = ", ".join(short(feature.name) for feature in study.task.features[:8])
    more = f" and {len(study.task.features) - 8} more" if len(study.task.features) > 8 else ""
    lines = [
        f"study            {short(study.name)}",
        f"identity         {study.identity.hex()}",
        f"learns           {short(study.task.label)} ({_loss(study.task)}) from {shown}{more}",
        *describe_specification(study.task),
        f"algorithm        {study.algorithm}, {study.rounds} rounds{_batches(mechanism)}"
        + _descent(study),
        *titled(
            "silos", f"{len(study.silos)}, {min(sizes)} to {max(sizes)} records{_asked(study)}"
        ),
        *titled("population", population_in_words(study)),
        *_spending_lines(study, mechanism),
        *titled("aggregation", aggregation_in_words(study)),
        *_check_ins(mechanism),
        *_evaluation(study),
        f"mixes            {' -> '.join(mix.name for mix in study.mixes)}; "
        f"a batch has at least {study.batching.minimum} reports",
        *titled("gate", gate_in_words(study)),
        *titled("tokens", tokens_in_words(study)),
        f"server           {study.server.fleet_address} and {study.server.channel_address}",
        f"privacy          epsilon {study.target.epsilon:g}, delta {study.target.delta:g} for "
        "every silo's whole transcript" + _exceptions(study) + ",",
        f"                 {AGAINST}",
        f"noise            standard deviation {_noise(mechanism)} on each of "
        f"{mechanism.dimension} coordinates (clip {study.clip:g})",
        *([] if (clipped := clip_in_words(study)) is None else titled("model", clipped)),
        *_group_lines(study, mechanism),
        *_central_lines(study),
        *_key_lines(study),
    ]
    return "\n".join(lines)


def population_in_words(study: Study) -> str:
    """What the study's objective is an average over."""
    people = sum(silo.records for silo in study.silos)
    if study.weighting is Weighting.RECORDS:
        return f"all {people} records, each counting alike"
    if study.weighting is Weighting.EQUAL:
        return (
            "all silos, each counting alike whatever its size: a record of a small one counts for "
            "more than a record of a large one"
        )
    return "all silos, each by the weight that its row names; 1 where it names none"


def _spending_lines(study: Study, mechanism: Mechanism) -> list[str]:
    """What each silo spends and counts, and which of them has everybody add noise for its sake."""
    participants = [study.participant(silo) for silo in study.silos]
    spent = {each: mechanism.epsilon(each) for each in set(participants[:_MOST_SILOS])}
    lines = [
        f"{short(silo.name)}: {silo.records} records, {100 * each.weight / len(participants):.3g} "
        f"% of the result, spends epsilon {spent[each]:.4g} at delta {each.target.delta:g}"
        for silo, each in zip(study.silos[:_MOST_SILOS], participants, strict=False)
    ]
    if more := len(study.silos) - _MOST_SILOS:
        lines += [f"and {more} more, which [[silos]] of its file lists"] if more > 0 else []
    shown = [f"{'silo' if not index else '':<17}{line}" for index, line in enumerate(lines)]
    found = costliest(participants)
    if found is None:
        return shown
    name, silo = short(study.silos[found.place].name), participants[found.place]
    return shown + titled("noise for one", found.in_words(name, silo))


def _group_lines(study: Study, mechanism: Mechanism) -> list[str]:
    """What holds for somebody in several silos and for a family, where theory gives it."""
    participants = [study.participant(silo) for silo in study.silos]
    delta = min(each.target.delta for each in participants)
    exposed = most_exposed(mechanism, participants)
    family = several_people(mechanism, exposed, FAMILY, delta)
    if family is None:
        return []
    told, others = "", participants.copy()
    others.remove(exposed)
    if others:
        twice = in_two_silos(mechanism, exposed, most_exposed(mechanism, others), delta)
        told = f"epsilon {twice:.4g} for somebody who is a record of two silos; "
    return titled(
        "several records",
        f"{told}epsilon {family:.4g} for {FAMILY} people of one silo together (a family); at delta "
        f"{delta:g}, against everybody",
    )


def _central_lines(study: Study) -> list[str]:
    """What may be claimed against somebody who sees less than everything, or why nothing may."""
    participants = [study.participant(silo) for silo in study.silos]
    figures = central_figures(
        study.mechanism(),
        participants,
        minimum_batch=study.batching.minimum,
        asked=study.participants,
        is_mean=study.aggregation.is_mean,
    )
    lines = []
    for figure, name in zip(figures[1:], ("vs. the server", "vs. outsiders"), strict=True):
        text = figure.reason or (
            f"epsilon {figure.epsilon:.4g} at delta {figure.delta:g}, one record replaced, against "
            f"{figure.against.value}, if {figure.assumption}"
        )
        lines += titled(name, text)
    return lines


def _key_lines(study: Study) -> list[str]:
    """The fingerprint of each party's key, to compare with what the party says of it."""
    keys = [(study.server.name, study.server.sign_key)]
    keys += [(mix.name, mix.sign_key) for mix in study.mixes]
    keys += [(silo.name, silo.sign_key) for silo in study.silos]
    return [f"key              {fingerprint(key).hex()} {name}" for name, key in keys]


def _loss(task: Task) -> str:
    parts = [task.loss.value]
    if task.level is not None:
        parts.append(f"level {task.level:g}")
    if task.threshold is not None:
        parts.append(f"threshold {task.threshold:g}")
    if task.classes is not None:
        parts.append(f"{task.classes} classes")
    if task.hidden is not None:
        parts.append(f"a network of {task.hidden} hidden units")
    if task.label_bounds is not None:
        low, high = task.label_bounds
        parts.append(f"clamped to {low:g} to {high:g}")
    return ", ".join(parts)


def gate_in_words(study: Study) -> str:
    least = study.batching.minimum
    if not study.batching.gate:
        return (
            "off: a first mix that works with the server can put reports of its own making around "
            "one silo's and so find out which is that silo's"
        )
    return (
        f"on: nobody can open a batch before {least} silos confirmed that their reports are in it; "
        f"if one mix is honest, a report hides among those of {least} silos, less the silos that "
        "work with the server"
    )


def tokens_in_words(study: Study) -> str:
    if not study.batching.tokens:
        return (
            "off: the server cannot tell silos' reports from those that somebody in the chain "
            "made up"
        )
    return (
        "on: a report counts only with a token that the server gave to one silo for one round; "
        "no mix can add a report without the server's help, and the server cannot tell whose token "
        "came back, whoever it works with"
    )


def clip_in_words(study: Study) -> str | None:
    """What a clip below the loss's own bound does to probabilities; None without either."""
    whole = replace(study.task, hidden=None).lipschitz  # a network's loss has no bound
    if not study.task.loss.gives_probabilities or study.clip >= whole:
        return None
    return (
        f"its clip is {study.clip / whole:.2g} of what a record could weigh: the model puts people "
        "in order, but its probabilities may be far from the shares of people, the rarer answer's "
        "too low"
    )


def aggregation_in_words(study: Study) -> str:
    """What one hospital with modified software could do to the model, and how much a hospital
    counts whose patients are unlike the others'."""
    rule, many = study.aggregation.rule, study.aggregation.bad_silos
    if rule is Rule.MEAN:
        return (
            "mean: one silo that sends what it likes, within the length that a report can have, "
            "can ruin the model; a hospital unlike the others counts in full"
        )
    if rule is Rule.BOUNDED_MEAN:
        return (
            "bounded-mean: over all rounds one silo moves what reports say together by about one "
            "answer of full length at most, so one of many that sends what it likes is borne, and "
            "several that work together are not; a hospital unlike the others counts in full while "
            "it differs little, more slowly where it differs much"
        )
    if rule is Rule.TRIMMED_MEAN:
        held = f"{many} highest and {many} lowest values of each coordinate"
        kept = f"up to {counted(many, 'silo that sends', 'silos that send')} what it likes"
        return (
            f"trimmed-mean without the {held}: holds off {kept}, and with them as many hospitals "
            "that are unlike the others"
        )
    return (
        "geometric-median: silos that send what they like are held off while they are few, the "
        "better the fewer; half of them decide; hospitals unlike the others are held off with them"
    )


def describe_revoking(ledger: Ledger, approval: Approval) -> str:
    """What revoking a study frees, and what it does not."""
    study, delta = approval.study, approval.participant.target.delta
    spent = ledger.spending(study.identity)
    reserved = approval.mechanism.epsilon(approval.participant)
    return "\n".join(
        [
            f"study            {short(study.name)}",
            f"identity         {study.identity.hex()}",
            f"spent            epsilon {spent.epsilon(delta):.4f} at delta {delta:g} in "
            f"{spent.rounds} of {study.rounds} rounds; this stays spent",
            f"reserved         epsilon {reserved:.4f}; what of it was not spent is free again",
            "                 a revoked study cannot be approved again",
        ]
    )


def describe_ledger(ledger: Ledger, config: SiloConfig) -> str:
    """Every study's line, every population's total, and where the ledger came from."""
    lines = [line for each in ledger.approvals() for line in _study_lines(ledger, each)]
    lines += [_put_back(body) for body in ledger.put_back_from()]
    for population in config.policy.budgets:
        lines.append(f"{_population(population, config)}: {_total(ledger, population)}")
    lines.append(f"({ADJACENCY}: {AGAINST})")
    return "\n".join(lines)


def ledger_figures(ledger: Ledger, config: SiloConfig) -> dict[str, object]:
    """The figures that `describe_ledger` shows, for programs."""
    studies = []
    for approval in ledger.approvals():
        spent, target = ledger.spending(approval.study.identity), approval.participant.target
        studies.append(
            {
                "study": approval.study.identity.hex(),
                "name": approval.study.name,
                "population": approval.population,
                "closed": approval.closed,
                "rounds": approval.study.rounds,
                "rounds_answered": spent.rounds,
                "epsilon_spent": spent.epsilon(target.delta),
                "epsilon_reserved": approval.mechanism.epsilon(approval.participant),
                "epsilon": target.epsilon,
                "delta": target.delta,
            }
        )
    totals = {
        name: {
            "epsilon_reserved": _epsilon_reserved(ledger, name),
            "epsilon_spent": ledger.total(name).epsilon(),
            "epsilon": budget.target.epsilon,
            "delta": budget.target.delta,
            "accountant": budget.accountant.value,
        }
        for name, budget in config.policy.budgets.items()
    }
    put_back = [
        {"at": body["at"], "backup": body["backup"], "complete": body["complete"]}
        for body in ledger.put_back_from()
    ]
    return {
        "adjacency": ADJACENCY,
        "against": AGAINST,
        "studies": studies,
        "populations": totals,
        "put_back": put_back,
    }


def _study_lines(ledger: Ledger, approval: Approval) -> list[str]:
    study, target = approval.study, approval.participant.target
    spent = ledger.spending(study.identity)
    reserved = approval.mechanism.epsilon(approval.participant)
    state = "revoked" if approval.closed else f"reserved {reserved:.4f}"
    if study.identity in ledger.forfeited():
        state = "counted in full when the ledger was put back"
    return [
        f"study {study.short_id} {study.name}: {spent.rounds} of {study.rounds} rounds, "
        f"epsilon {spent.epsilon(target.delta):.4f} spent, {state}, of the promised "
        f"{target.epsilon:g} at delta {target.delta:g}"
    ]


def _put_back(body: dict[str, Any]) -> str:
    at, backup = (f"{time[:10]} {time[11:19]} UTC" for time in (body["at"], body["backup"]))
    line = f"put back on {at} from a backup of {backup}: "
    if body["complete"] is True:
        return line + "no study was forgotten, as the operator stated"
    return line + (
        "studies may have been forgotten, so all of the budget counts as spent and nothing is "
        "approved any more"
    )


def _total(ledger: Ledger, population: str) -> str:
    total, reserved = ledger.total(population), _epsilon_reserved(ledger, population)
    target, accountant = total.budget.target, total.budget.accountant.value
    shown = "more than this accountant covers" if reserved is None else f"epsilon {reserved:.4f}"
    return (
        f"reserved {shown}, spent {total.epsilon():.4f}, of {target.epsilon:g} at delta "
        f"{target.delta:g}, {counted(total.rounds, 'round', 'rounds')}, {accountant} accountant"
    )


def _epsilon_reserved(ledger: Ledger, population: str) -> float | None:
    """The reserved ε at the policy's δ; None if the accountant was changed and has no such ε."""
    try:
        return ledger.reserved(population).epsilon()
    except InvalidSiloConfig:
        return None


def describe_saved(saved: SavedComplaint, study: Study | None) -> str:
    """One line about a report of this silo that went missing."""
    if study is None:
        return f"a study that was not approved here: {saved.path}"
    finding = saved.finding(study)
    return (
        f"study {study.short_id} {short(study.name)}, round {finding.round}: "
        f"{finding.accused or 'a mix'} has to explain it; {saved.path}"
    )


def counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _population(name: str, config: SiloConfig) -> str:
    if len(config.policy.budgets) == 1:
        return "all studies"
    return "main population" if name == MAIN else f"population {name}"


def _batches(mechanism: Mechanism) -> str:
    parts = ""
    if (steps := max(phase.steps for phase in mechanism.phases)) > 1:
        parts += f" of {steps} local steps, each with noise of its own"
    if len(mechanism.phases) > 1:
        parts += f" in {len(mechanism.phases)} phases of different records"
    if mechanism.minibatch.count is not None:
        parts += f", {counted(mechanism.minibatch.count, 'record', 'records')} of a silo in each"
    elif mechanism.minibatch.scheme is not Scheme.FULL:
        parts += (
            f", {mechanism.minibatch.scheme.value} batches of {100 * mechanism.minibatch.ratio:g} %"
        )
    return parts


def _descent(study: Study) -> str:
    if not ALGORITHMS[study.algorithm].takes_descent:
        return ""
    descent = study.setting.descent
    return f"; momentum {descent.momentum:g}, {descent.averaging.value} average"


def _asked(study: Study) -> str:
    if study.participants == len(study.silos):
        return ""
    if study.draw is not Draw.TURNS:
        return (
            f"; a round asks {study.participants} of them, as follows from its hash: a silo pays "
            "for all rounds"
        )
    most = sum(phase.turns or phase.rounds for phase in study.phases)
    return (
        f"; a round asks {study.participants} of them, in turns that follow from its hash: a silo "
        f"in {most} of {study.rounds} rounds at most, and pays for these"
    )


def _check_ins(mechanism: Mechanism) -> list[str]:
    if not any(phase.check_in for phase in mechanism.phases):
        return []
    return titled(
        "check-ins",
        "a silo takes part in at most one round, which only it knows; in the others it sends a "
        "report of the same size that says so to the server, who learns how many abstain in each "
        "round, and not which of them",
    )


def _evaluation(study: Study) -> list[str]:
    if not study.held_out:
        return []
    is_number = study.task.loss.is_regression
    asks = "how far off the final model is" if is_number else "how many of them it gets right"
    return titled(
        "evaluation",
        f"{100 * study.held_out:g} % of each silo's records, drawn in secret, are kept from "
        f"training; a last round shows them the final model and asks {asks}, in a report "
        "with noise like any other",
    )


def _exceptions(study: Study) -> str:
    own = sum(1 for silo in study.silos if silo.target is not None)
    return f" ({own} silos have their own)" if own else ""


def _noise(mechanism: Mechanism) -> str:
    scales = [mechanism.sigma(phase) for phase in range(len(mechanism.phases))]
    if min(scales) == max(scales):
        return f"{scales[0]:.4g}"
    return f"{min(scales):.4g} to {max(scales):.4g}"
