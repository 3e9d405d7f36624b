"""`silomix silo check`: what a study would use of this hospital's data, before anybody says yes."""

from pathlib import Path
from typing import Annotated

import typer

from silomix.failures import Failure, failures


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
    from silomix_client.config import load
    from silomix_client.data.people import check_people, read
    from silomix_core.study import Outline
    from silomix_protocol.files import named

    from silomix.specification import describe_people, describe_profile

    with failures():
        settings = load(config)
        with named(study_file, Failure):
            asked = Outline.parse(study_file.read_bytes())
        reading = read(settings.data_of(population), asked.task)
        print("\n".join(describe_profile(reading.profile, asked.task)))
        stated, floor = asked.records.get(settings.name), settings.policy.rules.minimum_people
        check_people(reading, floor, stated)
        print("\n".join(describe_people(len(reading.records), stated, floor)))
        print("nothing was written or sent; these are private figures, keep them here")
