"""`silomix silo check`: what a study would use of this hospital's data, before anybody says yes."""

from pathlib import Path
from typing import Annotated

import typer
from silomix_protocol.host.failure import Failure, failures
from silomix_protocol.host.terminal import show


def silo_check(
    config: Annotated[Path, typer.Argument(help="This party's TOML file.")],
    study_file: Annotated[Path, typer.Argument(help="The study file, or its outline.")],
    population: Annotated[
        str, typer.Option(help="Which population of your policy it is about (else the main one).")
    ] = "",
) -> None:
    """A dry run: read your data as the study asks for it and show what would be used.

    CONFIG is this silo's silo.toml.  STUDY_FILE is a study, whether or not it names this silo
    already, or the outline of one, which has no keys yet; only what it asks of records is looked
    at.  Counts, ranges, missing and clamped values are exact figures of your records: they are
    shown here and nowhere else.  Nothing is written, nothing is sent.
    """
    from silomix_client.config.silo_config import load
    from silomix_client.data.records import check_people, read
    from silomix_core.study.reader import parse_outline
    from silomix_protocol.host.operator_files import named

    from silomix.text.data_spec import describe_people, describe_profile

    with failures():
        settings = load(config)
        with named(study_file, Failure):
            asked = parse_outline(study_file.read_bytes())
        reading = read(settings.data_of(population), asked.task)
        show("\n".join(describe_profile(reading.profile, asked.task)))
        stated, floor = asked.records.get(settings.name), settings.policy.rules.minimum_people
        check_people(reading, floor, stated)
        show("\n".join(describe_people(len(reading.records), stated, floor)))
        show("nothing was written or sent; these are private figures, keep them here")
