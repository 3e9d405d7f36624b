"""A study in plain language, for the person who has to say yes or no."""

from silomix_core.study import Study


def describe_study(study: Study) -> str:
    mechanism = study.mechanism()
    sizes = [silo.records for silo in study.silos]
    shown = ", ".join(feature.name for feature in study.task.features[:8])
    more = f" and {len(study.task.features) - 8} more" if len(study.task.features) > 8 else ""
    lines = [
        f"study            {study.name}",
        f"identity         {study.identity.hex()}",
        f"learns           {study.task.label} ({study.task.loss.value}) from {shown}{more}",
        f"algorithm        {study.algorithm}, {study.rounds} rounds",
        f"silos            {len(study.silos)}, {min(sizes)} to {max(sizes)} records",
        f"mixes            {' -> '.join(mix.name for mix in study.mixes)}; "
        f"a batch has at least {study.batching.minimum} reports",
        f"server           {study.server.fleet_address} and {study.server.channel_address}",
        f"privacy          epsilon {study.target.epsilon:g}, delta {study.target.delta:g} for the "
        "smallest silo's whole transcript,",
        "                 one record replaced; holds against server, mixes and all other silos",
        f"noise            standard deviation {mechanism.sigma:.4g} on each of "
        f"{mechanism.dimension} coordinates (clip {study.clip:g})",
    ]
    return "\n".join(lines)
