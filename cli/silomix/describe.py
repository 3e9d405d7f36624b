"""A study and a ledger in plain language, for the person who has to say yes or no."""

from textwrap import fill

from silomix_client.approve import Review
from silomix_client.complaints import SavedComplaint
from silomix_client.config import MAIN, SiloConfig
from silomix_client.entries import Approval, worst
from silomix_client.errors import InvalidConfig
from silomix_client.ledger import Ledger
from silomix_core.accounting.budget import NOTHING, Loss
from silomix_core.accounting.events import ADJACENCY, Scheme
from silomix_core.central import central_figures
from silomix_core.mechanism import Mechanism
from silomix_core.study import Study
from silomix_core.task import Task

AGAINST = "one record replaced; holds against server, mixes and all other silos"


def describe_study(study: Study) -> str:
    mechanism = study.mechanism()
    sizes = [silo.records for silo in study.silos]
    shown = ", ".join(_short(feature.name) for feature in study.task.features[:8])
    more = f" and {len(study.task.features) - 8} more" if len(study.task.features) > 8 else ""
    lines = [
        f"study            {_short(study.name)}",
        f"identity         {study.identity.hex()}",
        f"learns           {_short(study.task.label)} ({_loss(study.task)}) from {shown}{more}",
        f"algorithm        {study.algorithm}, {study.rounds} rounds{_batches(mechanism)}",
        f"silos            {len(study.silos)}, {min(sizes)} to {max(sizes)} records"
        + _asked(study),
        *_check_ins(mechanism),
        *_evaluation(study),
        f"mixes            {' -> '.join(mix.name for mix in study.mixes)}; "
        f"a batch has at least {study.batching.minimum} reports",
        *_filled("gate", _gate(study)),
        *_filled("tokens", _tokens(study)),
        f"server           {study.server.fleet_address} and {study.server.channel_address}",
        f"privacy          epsilon {study.target.epsilon:g}, delta {study.target.delta:g} for "
        "every silo's whole transcript" + _exceptions(study) + ",",
        f"                 {AGAINST}",
        f"noise            standard deviation {_noise(mechanism)} on each of "
        f"{mechanism.dimension} coordinates (clip {study.clip:g})",
        *_central_lines(study),
    ]
    return "\n".join(lines)


def _central_lines(study: Study) -> list[str]:
    """What may be claimed against somebody who sees less than everything, or why nothing may."""
    participants = [study.participant(silo) for silo in study.silos]
    figures = central_figures(study.mechanism(), participants, minimum_batch=study.batching.minimum)
    lines = []
    for figure, name in zip(figures[1:], ("vs. the server", "vs. outsiders"), strict=True):
        text = figure.reason or (
            f"epsilon {figure.epsilon:.4g} at delta {figure.delta:g}, one record replaced, against "
            f"{figure.against.value}, if {figure.assumption}"
        )
        lines += _filled(name, text)
    return lines


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


def _gate(study: Study) -> str:
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


def _tokens(study: Study) -> str:
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


def _filled(name: str, text: str) -> list[str]:
    return fill(text, width=97, initial_indent=f"{name:<17}", subsequent_indent=" " * 17).split(
        "\n"
    )


def describe_offer(reviewed: Review, config: SiloConfig) -> str:
    """What this silo would give, at the δ of its own policy: the study's may be a larger one."""
    participant, budget = reviewed.participant, config.policy.budgets[reviewed.population]
    promised, lifetime = participant.target, budget.target
    cost = reviewed.study.mechanism().epsilon(participant, lifetime.delta)
    weight = "" if participant.weight == 1 else f", its weight {participant.weight:.3g}"
    return "\n".join(
        [
            f"your records     {len(reviewed.records)}, frozen at approval{weight}",
            f"you are promised epsilon {promised.epsilon:g} at delta {promised.delta:g}",
            f"your loss        epsilon {cost:.4g} at your policy's delta {lifetime.delta:g}, over "
            f"the whole study{_less_than_promised(reviewed)}",
            f"your policy      epsilon {lifetime.epsilon:g} in all, "
            f"{budget.accountant.value} accountant; {_reservation(reviewed, config)}",
        ]
    )


def _less_than_promised(reviewed: Review) -> str:
    """Why a silo may lose less than it was promised: one noise scale serves the neediest silo."""
    study, participant = reviewed.study, reviewed.participant
    if reviewed.epsilon >= 0.99 * participant.target.epsilon:
        return ""
    if len({(silo.weight, silo.target) for silo in study.silos}) > 1:
        return " (less than promised: another silo needs more noise)"
    if participant.records > min(silo.records for silo in study.silos):
        return " (less than promised: the smallest silo decides the noise)"
    return ""


def _reservation(reviewed: Review, config: SiloConfig) -> str:
    """What is reserved of the policy's budget, without the study and with it."""
    study, budget = reviewed.study, config.policy.budgets[reviewed.population]
    reserved, known = _reserved_so_far(reviewed, config)
    text = f"reserved so far: {budget.epsilon(reserved):.4g}"
    if known or not budget.covers(study.minibatch.scheme):  # a refusal follows, without a sum
        return text
    planned = worst(budget, study.mechanism().transcripts(reviewed.participant))
    return f"{text}, with this study: {budget.epsilon(reserved + planned):.4g}"


def _reserved_so_far(reviewed: Review, config: SiloConfig) -> tuple[Loss, bool]:
    """From the ledger, if there is one, and whether the study is in it: looking writes nothing."""
    if not (config.folder / "state" / "ledger.sqlite").exists():
        return NOTHING, False
    ledger = Ledger(config.state, config.policy)
    try:
        known = any(each.study.identity == reviewed.study.identity for each in ledger.approvals())
        return ledger.reserved(reviewed.population).loss, known
    finally:
        ledger.close()


def describe_closing(ledger: Ledger, approval: Approval) -> str:
    """What closing a study frees, and what it does not."""
    study, delta = approval.study, approval.participant.target.delta
    spent = ledger.spending(study.identity)
    reserved = approval.mechanism.epsilon(approval.participant)
    return "\n".join(
        [
            f"study            {_short(study.name)}",
            f"identity         {study.identity.hex()}",
            f"spent            epsilon {spent.epsilon(delta):.4f} at delta {delta:g} in "
            f"{spent.rounds} of {study.rounds} rounds; this stays spent",
            f"reserved         epsilon {reserved:.4f}; what of it was not spent is free again",
            "                 a closed study cannot be approved again",
        ]
    )


def describe_ledger(ledger: Ledger, config: SiloConfig) -> str:
    """Every study's line, and every population's total."""
    lines = [line for each in ledger.approvals() for line in _study_lines(ledger, each)]
    for population in config.policy.budgets:
        lines.append(f"{_population(population, config)}: {_total(ledger, population)}")
    lines.append(f"({ADJACENCY}: {AGAINST})")
    return "\n".join(lines)


def ledger_figures(ledger: Ledger, config: SiloConfig) -> dict[str, object]:
    """The same for programs."""
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
    return {"adjacency": ADJACENCY, "against": AGAINST, "studies": studies, "populations": totals}


def _study_lines(ledger: Ledger, approval: Approval) -> list[str]:
    study, target = approval.study, approval.participant.target
    spent = ledger.spending(study.identity)
    reserved = approval.mechanism.epsilon(approval.participant)
    state = "closed" if approval.closed else f"reserved {reserved:.4f}"
    return [
        f"study {study.short_id} {study.name}: {spent.rounds} of {study.rounds} rounds, "
        f"epsilon {spent.epsilon(target.delta):.4f} spent, {state}, of the promised "
        f"{target.epsilon:g} at delta {target.delta:g}"
    ]


def _total(ledger: Ledger, population: str) -> str:
    total, reserved = ledger.total(population), _epsilon_reserved(ledger, population)
    target, accountant = total.budget.target, total.budget.accountant.value
    shown = "more than this accountant covers" if reserved is None else f"epsilon {reserved:.4f}"
    return (
        f"reserved {shown}, spent {total.epsilon():.4f}, of {target.epsilon:g} at delta "
        f"{target.delta:g}, {counted(total.rounds, 'round', 'rounds')}, {accountant} accountant"
    )


def _epsilon_reserved(ledger: Ledger, population: str) -> float | None:
    """At the policy's δ; none if the accountant was changed to one that has no figure for it."""
    try:
        return ledger.reserved(population).epsilon()
    except InvalidConfig:
        return None


def describe_saved(saved: SavedComplaint, study: Study | None) -> str:
    """One line about a report of this silo that went missing."""
    if study is None:
        return f"a study that was not approved here: {saved.path}"
    finding = saved.finding(study)
    return (
        f"study {study.short_id} {_short(study.name)}, round {finding.round}: "
        f"{finding.accused or 'a mix'} has to explain it; {saved.path}"
    )


def counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _population(name: str, config: SiloConfig) -> str:
    if len(config.policy.budgets) == 1:
        return "all studies"
    return "main population" if name == MAIN else f"population {name}"


def _short(text: str) -> str:
    """So short that no terminal starts a new line within it."""
    return text if len(text) <= 50 else f"{text[:49]}…"


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


def _asked(study: Study) -> str:
    if study.participants == len(study.silos):
        return ""
    return f"; a round asks {study.participants} of them, drawn anew"


def _check_ins(mechanism: Mechanism) -> list[str]:
    if not any(phase.check_in for phase in mechanism.phases):
        return []
    return _filled(
        "check-ins",
        "a silo takes part in at most one round, which only it knows; in the others it sends a "
        "report of the same size that says so to the server, who learns how many abstain in each "
        "round, and not which of them",
    )


def _evaluation(study: Study) -> list[str]:
    if not study.held_out:
        return []
    return _filled(
        "evaluation",
        f"{100 * study.held_out:g} % of each silo's records, drawn in secret, are kept from "
        "training; a last round asks how many of them the final model gets right, in a report "
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
