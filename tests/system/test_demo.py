"""`silomix demo` as a new user meets it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from silomix_lab.demo.run_demo import MARKER
from support.commands import typed
from support.processes import silomix, start, wait_until


def test_five_silos_and_three_mixes_come_close_to_the_pooled_model(tmp_path: Path) -> None:
    arguments = "--silos 5 --mixes 3 --rounds 25 --epsilon 2 --json out.json --plain"
    ended = silomix("demo", *arguments.split(), cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    summary = json.loads((tmp_path / "out.json").read_text())
    assert summary["test_error"] < 0.6 * summary["majority_error"]
    assert summary["test_error"] < summary["pooled_error"] + 0.03
    assert 0.9 < summary["calibration"]["prevalence_ratio"] < 1.1
    assert "times the true share, slope" in " ".join(ended.stdout.split())
    spent = {line["silo"]: line["epsilon_spent"] for line in summary["ledgers"]}
    assert len(spent) == 5
    assert max(spent.values()) <= 2.0 + 1e-9
    smallest = min(summary["ledgers"], key=lambda line: line["records"])
    assert abs(smallest["epsilon_spent"] - 2.0) < 1e-6
    assert summary["adjacency"] == "replace-one-record"
    assert (summary["epsilon"], summary["rounds"]) == (2.0, 25)
    assert (summary["reports_accepted"], summary["reports_dropped"]) == (125, 0)
    for key in ("delta", "seconds_per_round_median", "seconds_total", "peak_rss_mb"):
        assert summary[key]
    assert {"silo", "mix", "server", "coordinator", "superlink"} <= set(summary["peak_rss_mb"])
    folder = tmp_path / "silomix-demo"
    for name in ("model.npz", "summary.json", "rounds.csv", "study.png", "logs/silo-5.log"):
        assert (folder / name).stat().st_size > 0
    assert "approves study" in ended.stdout


def test_breast_cancer_and_a_csv_file_run_too(tmp_path: Path) -> None:
    lines = ["a,b,sick"]
    lines += [f"{x},{(x * 7) % 11},{int(x > 50)}" for x in range(101)]
    (tmp_path / "own.csv").write_text("\n".join(lines) + "\n")
    for arguments in (
        "--data breast-cancer --silos 2 --rounds 5 --mixes 1 --epsilon 5 "
        "--sampling without-replacement --ratio 0.5",
        "--data own.csv --label sick --silos 2 --rounds 5 --mixes 1",
    ):
        ended = silomix("demo", "--plain", *arguments.split(), cwd=tmp_path)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert "test error" in ended.stdout
        study = (tmp_path / "silomix-demo" / "study.toml").read_text()
        drawn = 'sampling = "without-replacement"\nratio = 0.5\n'
        assert (drawn in study) == ("--sampling" in arguments)


def test_silos_that_check_in_secretly_learn_and_evaluate_a_model(tmp_path: Path) -> None:
    """Everybody reports in every round; each takes part in one, and in the evaluation.

    The silos' hold-out and the public one are samples of the same: 800 and 4000 records, so the
    errors differ by less than 5 of their standard deviations and of the noise.
    """
    arguments = "--algorithm check-ins-averaged --evaluation 0.4 --silos 4 --mixes 1 --rounds 6"
    ended = silomix(
        *("demo", "--plain", *arguments.split(), "--epsilon", "4", "--json", "out.json"),
        cwd=tmp_path,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    summary = json.loads((tmp_path / "out.json").read_text())
    assert (summary["rounds"], summary["rounds_void"], summary["reports_dropped"]) == (7, 0, 0)
    assert summary["reports_accepted"] == 4 + 4
    assert [line["rounds_answered"] for line in summary["ledgers"]] == [2] * 4
    assert max(line["epsilon_spent"] for line in summary["ledgers"]) <= 4 + 1e-9
    progress = tmp_path / "silomix-demo" / "server" / "state" / "progress.jsonl"
    lines = [json.loads(line) for line in progress.read_text().splitlines()]
    assert [line["accepted"] + line["abstained"] for line in lines] == [4] * 7
    assert sum(line["abstained"] for line in lines[:6]) == 20
    assert lines[-1]["abstained"] == 0
    found = summary["evaluation"]
    assert found["reports"] == 4
    assert 0 < found["standard_error"] < 0.02
    assert abs(sum(found["confusion"].values()) - 1) < 1e-9
    wrong = found["confusion"]["false_positive"] + found["confusion"]["false_negative"]
    assert abs(found["error"] - wrong) < 1e-9
    sampled = (0.25 / 800 + 0.25 / 4000 + found["standard_error"] ** 2) ** 0.5
    assert abs(found["error"] - summary["test_error"]) < 5 * sampled
    assert "by the silos" in ended.stdout
    assert "(3 abstain)" in ended.stdout or "(4 abstain)" in ended.stdout


def test_bad_input_leaves_an_earlier_demo_alone(tmp_path: Path) -> None:
    earlier = tmp_path / "silomix-demo"
    earlier.mkdir()
    (earlier / MARKER).touch()
    (earlier / "summary.json").write_text("{}")
    for arguments in (
        "--data nowhere.csv --label y",
        "--epsilon 0",
        "--epsilon 80",
        "--json nowhere/out.json",
    ):
        assert typed("demo", "--plain", *arguments.split(), cwd=tmp_path).returncode == 1
        assert (earlier / "summary.json").read_text() == "{}"


def test_bad_input_gets_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    cases = {
        "--data nowhere.csv": "nowhere.csv: no such file",
        "--sampling poisson": "--sampling poisson needs a --ratio",
        "--sampling poisson --ratio 0.5 --algorithm shuffled-mb-sgd": "draws its own batches",
        "--data nonsense": "breast-cancer",
        "--epsilon 0": "epsilon",
        "--epsilon 80": "use an epsilon of at most",
        "--algorithm one-pass-mb-sgd --rounds 1000000": "use fewer rounds",
        "--delta 2": "delta",
        "--algorithm magic": "noisy-mb-sgd",
        "--minimum-batch 9 --silos 5": "there are only 5 silos",
        "--evaluation 1.5": "a share from 0.01 to 0.99",
        "--central-epsilon 1": "needs reports of one record: shuffled-mb-sgd",
        "--json nowhere/out.json": "no such folder",
    }
    for arguments, hint in cases.items():
        ended = typed("demo", "--plain", *arguments.split(), cwd=tmp_path)
        assert ended.returncode == 1, arguments
        assert hint in ended.stderr, ended.stderr
        assert "Traceback" not in ended.stderr
        assert not (tmp_path / "silomix-demo").exists()
    ended = silomix("demo", "--plain", "--epsilon", "0", cwd=tmp_path)
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1


def test_a_folder_that_is_not_a_demos_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    ended = typed("demo", "--plain", "--out", "mine", cwd=tmp_path)
    assert ended.returncode == 1
    assert "not empty" in ended.stderr
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"


def test_a_consortium_is_never_overwritten(tmp_path: Path) -> None:
    made = silomix("consortium", "init", "mine", "--silos", "2", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    key = (tmp_path / "mine" / "silo-1" / "sign.key").read_bytes()
    for again in (("consortium", "init", "mine"), ("demo", "--plain", "--out", "mine")):
        ended = typed(*again, cwd=tmp_path)
        assert ended.returncode == 1
        assert "not empty" in ended.stderr
    assert (tmp_path / "mine" / "silo-1" / "sign.key").read_bytes() == key


def test_ctrl_c_reaches_what_tests_start_even_where_they_ignore_it(tmp_path: Path) -> None:
    """As in the background of a script's shell."""
    code = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        said, _ = start([sys.executable, "-c", code], tmp_path).communicate(timeout=60)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert said == "True\n"


def test_ctrl_c_ends_everything_and_says_so(tmp_path: Path) -> None:
    with _demo(tmp_path) as demo:
        children = _wait_for_round_one(demo, tmp_path)
        demo.send_signal(signal.SIGINT)
        _, errors = demo.communicate(timeout=60)
    assert demo.returncode != 0
    assert "interrupted" in errors
    assert "logs" in errors
    wait_until(lambda: not any(_alive(child) for child in children), "all children are gone")


def test_a_dead_mix_ends_everything_and_is_named(tmp_path: Path) -> None:
    with _demo(tmp_path) as demo:
        children = _wait_for_round_one(demo, tmp_path)
        mix = next(child for child in children if "mix-1" in " ".join(child.cmdline()))
        os.kill(mix.pid, signal.SIGKILL)
        _, errors = demo.communicate(timeout=60)
    assert demo.returncode == 1
    assert "mix-1 ended by SIGKILL" in errors
    assert "logs/mix-1.log" in errors
    wait_until(lambda: not any(_alive(child) for child in children), "all children are gone")


def test_a_demo_killed_outright_leaves_no_process(tmp_path: Path) -> None:
    with _demo(tmp_path) as demo:
        children = _wait_for_round_one(demo, tmp_path)
    wait_until(lambda: not any(_alive(child) for child in children), "all children are gone")


@contextmanager
def _demo(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """A long demo; killed outright if it still runs, its pipes closed."""
    arguments = "--plain --silos 2 --mixes 1 --minimum-batch 2 --rounds 3000 --epsilon 5"
    command = [sys.executable, "-m", "silomix", "demo", *arguments.split()]
    with start(command, folder) as demo:
        try:
            yield demo
        finally:
            demo.kill()


def _wait_for_round_one(demo: "subprocess.Popen[str]", folder: Path) -> list[psutil.Process]:
    """All descendants of the demo, once the study runs."""
    progress = folder / "silomix-demo" / "server" / "state" / "progress.jsonl"
    wait_until(lambda: progress.exists() or demo.poll() is not None, "the first round")
    assert demo.poll() is None, "\n".join(demo.communicate(timeout=60))
    children = psutil.Process(demo.pid).children(recursive=True)
    assert len(children) == 6  # server, superlink, coordinator, mix, 2 silos
    return children


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
