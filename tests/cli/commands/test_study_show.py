"""`silomix study show`, and studies that no noise can serve, whoever reads them."""

from pathlib import Path

from silomix_lab.consortium.create import Consortium
from support.operator_commands import approve, one_line_error, silomix, unfolded
from support.silos import altered, study_file


def test_study_show_describes_the_study_by_its_hash(consortium: Consortium) -> None:
    result = silomix("study", "show", consortium.folder / "study.toml")
    assert result.returncode == 0, result.stderr
    for shown in (
        consortium.study.identity.hex(),
        "5 rounds",
        "3, 40 to 60 records",
        "mix-1 -> mix-2; a batch has at least 2 reports",
        "gate             on: nobody can open a batch before 2 silos confirmed",
        "if one mix is honest, a report hides among those of 2 silos",
        "tokens           on: a report counts only with a token that the server gave to one silo",
        "epsilon 2, delta 1e-05",
        "one record replaced",
        "vs. the server   no amplification claimed, because a full-batch report",
        "at delta 1e-05, one record replaced, against outsiders",
        "if server and mixes are honest",
    ):
        assert shown in " ".join(result.stdout.split(" " * 17)).replace("\n ", " ")


def test_study_show_says_what_a_study_without_gate_and_tokens_allows(
    consortium: Consortium,
) -> None:
    altered(consortium, ("gate = true", "gate = false"), ("tokens = true", "tokens = false"))
    shown = silomix("study", "show", consortium.folder / "study.toml").stdout
    letter = unfolded(approve(consortium, "--yes").stdout)
    for name, gap, text in (
        ("gate", 13, "off: a first mix that works with the server"),
        ("tokens", 11, "off: the server cannot tell silos' reports from those"),
    ):
        assert f"{name}{' ' * gap}{text}" in shown
        assert f"{name} {text}" in letter


def test_study_show_of_something_else_is_one_line(consortium: Consortium) -> None:
    path = consortium.folder / "study.toml"
    path.write_bytes(study_file(consortium).replace(b"rounds = 5", b'rounds = "many"'))
    message = one_line_error(silomix("study", "show", path))
    assert message.endswith("study.toml: algorithm.rounds: expected a whole number, got 'many'")


BEYOND_NOISE = "[privacy] with [algorithm]: epsilon=80 at delta=1e-05 cannot be kept"


def test_a_study_that_no_noise_can_serve_is_refused_by_whoever_reads_it(
    consortium: Consortium,
) -> None:
    """At once and with what would help, not when the first silo is asked."""
    altered(consortium, ("epsilon = 2.0", "epsilon = 80.0"))
    study = consortium.folder / "study.toml"
    for command in (
        ("study", "show", study),
        ("silo", "review", consortium.silos[0], study),
        ("silo", "approve", "--yes", consortium.silos[0], study),
        ("mix", "run", consortium.mixes[0]),
        ("server", "run", consortium.server),
    ):
        message = one_line_error(silomix(*command))
        assert BEYOND_NOISE in message
        assert "use an epsilon of at most" in message
        assert message.startswith(str(study)) or command[:2] != ("study", "show")


def test_no_folder_is_made_for_a_study_that_no_noise_can_serve(tmp_path: Path) -> None:
    message = one_line_error(silomix("consortium", "init", tmp_path / "new", "--epsilon", "80"))
    assert "use an epsilon of at most" in message
    assert not (tmp_path / "new").exists()
