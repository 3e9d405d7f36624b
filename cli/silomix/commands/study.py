"""`silomix study`: what anybody may ask of a study file."""

from pathlib import Path
from typing import Annotated

import typer
from silomix_protocol.host.failure import Failure, failures
from silomix_protocol.host.terminal import show

from silomix.commands.authority import assemble
from silomix.commands.options import StudyFile
from silomix.text.literal_help import Commands

study = Commands(help="Study files.")
study.command("assemble")(assemble)


@study.command("show")
def study_show(study_file: StudyFile) -> None:
    """What a study asks, of whom, at which privacy; and its hash."""
    from silomix_protocol.host.operator_files import named, read_study

    from silomix.text.study_and_ledger import describe_study

    with failures():
        with named(study_file, Failure):
            described = describe_study(read_study(study_file))
        show(described)


@study.command("complaint")
def study_complaint(
    study_file: StudyFile,
    file: Annotated[Path, typer.Argument(help="The complaint: a file of state/complaints/.")],
) -> None:
    """Check a silo's complaint that its report went missing, and say who has to explain it.

    Anybody with the study file can check it.  What the server was sent shows that the first mix
    had the report and that the silo misses it; it does not say where it went missing.  The copy of
    the silo's operator does; who is shown it can tell which report was the silo's.
    """
    from silomix_protocol.host.operator_files import named, read_study

    from silomix.text.complaint import read_complaint

    with failures():
        with named(study_file, Failure):
            study = read_study(study_file)
        show("\n\n".join(read_complaint(file, study)))
