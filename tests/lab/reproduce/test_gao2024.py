"""`silomix reproduce`: its data, its trials, its verdicts, on digits that are made up here."""

import gzip
import json
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from numpy.typing import NDArray
from scipy import stats
from silomix.main import app
from silomix_core.accounting.bounds.noise_formulas import multi_pass_sigma, one_pass_sigma
from silomix_core.task.losses import LossName
from silomix_lab.colours import colours
from silomix_lab.parallel import Spread
from silomix_lab.reproduce import digits, gao2024
from silomix_lab.reproduce.experiment import ClaimedBound, ClaimVerdict, below
from silomix_lab.reproduce.trial_cache import TrialCache
from silomix_protocol.host.failure import Failure
from typer.testing import CliRunner

PER_DIGIT = 200


def idx(array: NDArray[np.uint8]) -> bytes:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + array.tobytes()


def make_digits(folder: Path, per_digit: int = PER_DIGIT) -> Path:
    """Images of 8 × 8 pixels: each digit has a pattern of its own, under noise."""
    rng = np.random.default_rng(1)
    patterns = rng.integers(0, 256, size=(10, 8, 8))
    for stem, count in (("train", per_digit), ("t10k", 40)):
        labels = np.repeat(np.arange(10), count).astype(np.uint8)
        images = 0.4 * patterns[labels] + 0.6 * rng.integers(0, 256, size=(len(labels), 8, 8))
        order = rng.permutation(len(labels))
        (folder / f"{stem}-images-idx3-ubyte").write_bytes(idx(images[order].astype(np.uint8)))
        content = idx(labels[order])
        (folder / f"{stem}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(content))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_digits(tmp_path_factory.mktemp("digits"))


def test_without_a_name_the_experiments_are_listed_with_what_they_need() -> None:
    result = CliRunner().invoke(app, ["reproduce"])
    assert result.exit_code == 0, result.output
    shown = " ".join(result.output.replace("│", " ").split())
    assert "loc" in shown
    assert "MNIST" in shown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing"], "no experiment 'nothing'; known: loc"),
        (["loc"], "loc needs --data FOLDER with the four IDX files of MNIST"),
        (["loc", "--data", "{}", "--part", "hinge-7"], "loc has no part 'hinge-7'; it has logis"),
        (["loc", "--data", "{}/none"], "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-"),
        (["loc", "--data", "{}", "--json", "no/such/x"], "--json no/such/x: there is no such"),
    ],
)
def test_what_is_missing_is_said_in_one_line(
    arguments: list[str], says: str, folder: Path, tmp_path: Path
) -> None:
    given = [each.format(folder) for each in arguments]
    result = CliRunner().invoke(app, ["reproduce", *given, "--out", str(tmp_path)])
    assert isinstance(result.exception, Failure)
    assert says in str(result.exception)


@pytest.mark.parametrize("content", [b"", b"\x00\x00\x0d\x01\x00\x00\x00\x01\x00", b"GIF89a"])
def test_a_file_that_is_no_idx_file_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(Failure, match="not an IDX file"):
        digits.read_idx(path)
    path.write_bytes(idx(np.zeros((3, 4), np.uint8))[:-1])
    with pytest.raises(Failure, match="not what its header says"):
        digits.read_idx(path)


def test_silos_have_one_odd_and_one_even_digit_and_share_no_image(folder: Path) -> None:
    data = digits.load(folder)
    # what a record is in `split`, found again by its values
    split = digits.split(folder, seed=3)
    encoded = data.task(LossName.LOGISTIC).encode(data.values)
    known = {row.tobytes(): int(digit) for row, digit in zip(encoded, data.digits, strict=True)}
    assert len(known) == len(encoded)
    pairs, seen = set(), []
    for silo in split.silos:
        assert len(silo) == data.records == 2 * (PER_DIGIT * 4 // 5 // 5)
        rows = [row.tobytes() for row in silo.features]
        kinds = sorted({known[row] for row in rows}, key=lambda digit: digit % 2)
        assert [digit % 2 for digit in kinds] == [0, 1]
        assert [known[row] % 2 == 1 for row in rows] == list(silo.labels > 0)
        pairs.add(tuple(kinds))
        seen += rows
    assert len(pairs) == 25
    seen += [row.tobytes() for row in split.test.features]
    assert len(set(seen)) == len(seen) == 10 * PER_DIGIT
    assert len(split.test) == 10 * PER_DIGIT // 5


def test_what_is_fitted_does_not_depend_on_the_silos_images(folder: Path, tmp_path: Path) -> None:
    """Other train images, the same public ones: the same bounds and the same components."""
    make_digits(tmp_path, PER_DIGIT // 2)
    for public in folder.glob("t10k*"):
        (tmp_path / public.name).write_bytes(public.read_bytes())
    train = "train-images-idx3-ubyte"
    one, other = digits.load(folder), digits.load(tmp_path)
    assert np.array_equal(one.bounds, other.bounds)
    # an image that both have is encoded alike
    image = digits.read_idx(folder / train)[:1]
    content = digits.read_idx(tmp_path / train).copy()
    content[0] = image[0]
    (tmp_path / train).write_bytes(idx(content))
    digits.load.cache_clear()
    assert digits.load(tmp_path).values[0] == pytest.approx(one.values[0])


def test_the_printed_noise_is_the_papers_and_refused_beyond_its_theorem(folder: Path) -> None:
    part, n = gao2024.PARTS[0], digits.load(folder).records
    made = gao2024._study(folder, part, gao2024.PRINTED_ONE_PASS, 0.75)
    batch = int(n / gao2024.PRINTED_ONE_PASS.rounds)
    sigma = one_pass_sigma(lipschitz=0.5, batch=batch, epsilon=0.75, delta=1 / n**2)
    assert made.mechanism.sigma() == pytest.approx(sigma)
    localized = gao2024._study(folder, part, gao2024.PRINTED_LOCALIZED, 0.75).mechanism
    phase = localized.phases[1]
    assert phase.records(n) == n // 4
    sigma = multi_pass_sigma(
        lipschitz=0.5,
        records=n // 4,
        batch=n // 4,
        rounds=phase.rounds,
        epsilon=0.75,
        delta=1 / n**2,
    )
    assert localized.sigma(1) == pytest.approx(sigma)
    refused = [
        gao2024.refusal(folder, part, gao2024.PRINTED_ONE_PASS, each) for each in gao2024.EPSILONS
    ]
    assert refused[0] is None
    assert all(reason is not None and "epsilon <= 1" in reason for reason in refused[1:])
    assert gao2024.refusal(folder, part, gao2024.ONE_PASS[0], 18.0) is None


def test_an_experiment_writes_table_figures_picture_and_goes_on_where_it_stopped(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gao2024, "EPSILONS", (3.0, 12.0))
    monkeypatch.setattr(gao2024, "AIMS", {3.0: 50.0})
    few = tuple(
        replace(each, rounds=4)
        for each in (gao2024.ONE_PASS[0], gao2024.LOCALIZED[0], gao2024.PRINTED_ONE_PASS)
    )
    monkeypatch.setattr(gao2024, "_SMOOTH", (*few, gao2024.AUTO))
    monkeypatch.setattr(gao2024, "ONE_PASS", few[:1])
    monkeypatch.setattr(gao2024, "LOCALIZED", few[1:2])
    monkeypatch.setattr(gao2024, "PRINTED_ONE_PASS", few[2])

    def reproduce(trials: int) -> str:
        result = CliRunner().invoke(
            app,
            [
                *("reproduce", "loc", "--data", str(folder), "--part", "logistic-25,logistic-18"),
                *("--trials", str(trials), "--out", str(tmp_path), "--processes", "1"),
            ],
        )
        assert result.exit_code == 0, (result.output, result.exception)
        return " ".join(result.output.split())

    assert "13 trials, 0 of them kept" in reproduce(1)
    first = json.loads((tmp_path / "loc.json").read_text())
    assert "26 trials, 13 of them kept" in reproduce(2)
    again = json.loads((tmp_path / "loc.json").read_text())
    for one, two in zip(first["rows"], again["rows"], strict=True):
        assert two["errors"][:1] == one["errors"]
        assert (two["refused"] is None) == (len(two["errors"]) == 2)
    found = {(row["algorithm"], row["noise"], row["epsilon"]): row for row in again["rows"]}
    best = found["auto", "exact", 12.0]
    assert best["excess"] == pytest.approx(np.mean(np.subtract(best["errors"], again["floors"])))
    assert np.mean(best["errors"]) < 45
    assert "epsilon <= 1" in found["one-pass-mb-sgd", "printed formula", 3.0]["refused"]
    assert {each["verdict"] for each in again["claims"]} <= {each.value for each in ClaimVerdict}
    assert len(again["claims"]) == 7
    assert "| auto |" in (tmp_path / "loc.md").read_text()
    assert (tmp_path / "loc.png").read_bytes().startswith(b"\x89PNG")


def test_kept_trials_survive_a_cut_line_and_refuse_other_data(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    kept = TrialCache(path, "one")
    kept.add("a", 1.5)
    kept.add("b", 2.5)
    path.write_text(path.read_text()[:-4])
    again = TrialCache(path, "one")
    assert {"a", "b", "c"} - again.figures.keys() == {"b", "c"}
    again.add("b", 3.5)
    assert TrialCache(path, "one").figures == {"a": 1.5, "b": 3.5}
    with pytest.raises(Failure, match="another version or other data"):
        TrialCache(path, "two")


def bound(mean: float, half_width: float | None, limit: float = 0.0) -> ClaimedBound:
    """A mean of ten trials whose 95 % interval has this half-width; None: of one trial."""
    if half_width is None:
        return ClaimedBound("a", Spread.of([mean]), limit)
    found = Spread.of([mean + sign for sign in (-1, 1) for _ in range(5)])
    assert found.margin is not None
    scale = half_width / found.margin
    return ClaimedBound("a", Spread.of([mean + sign * scale for sign in (-1, 1)] * 5), limit)


@pytest.mark.parametrize(
    ("bounds", "verdict"),
    [
        ([bound(-1.0, 0.5), bound(-0.2, 0.1)], ClaimVerdict.HOLDS),
        ([bound(-1.0, 0.5), bound(-0.2, 0.3)], ClaimVerdict.UNDECIDED),
        ([bound(-1.0, 0.5), bound(0.5, 0.3)], ClaimVerdict.FAILS),
        ([bound(-1.0, 0.5), bound(0.32, 0.3)], ClaimVerdict.UNDECIDED),  # one of two looks
        ([bound(0.32, 0.3)], ClaimVerdict.FAILS),
        ([bound(0.4, 0.1, 0.6)], ClaimVerdict.HOLDS),
        ([bound(-1.0, None)], ClaimVerdict.UNDECIDED),  # one trial says nothing
        ([], ClaimVerdict.UNDECIDED),
    ],
)
def test_a_claim_holds_or_fails_by_its_intervals(
    bounds: list[ClaimedBound], verdict: ClaimVerdict
) -> None:
    assert below("less", bounds).verdict is verdict


def test_seven_looks_refute_a_true_claim_no_oftener_than_one() -> None:
    """Seven means that lie at their limits, ten trials each: "does not hold" in 2.5 % of 2000 runs
    at most, where seven looks at 95 % each say it in 16 %.  Our own false alarm: 10⁻⁶."""
    rng = np.random.default_rng(1)
    refuted = sum(
        below("", [ClaimedBound("a", Spread.of(each)) for each in runs]).verdict
        is ClaimVerdict.FAILS
        for runs in rng.normal(size=(2000, 7, 10))
    )
    assert refuted <= stats.binom.isf(1e-6, 2000, 0.025)
    assert refuted >= stats.binom.isf(1 - 1e-6, 2000, 0.02)


@pytest.mark.parametrize("count", [1, 10, 11, 40])
def test_no_colour_stands_for_two_curves(count: int) -> None:
    assert len({to_rgb(each) for each in colours(count)}) == count
