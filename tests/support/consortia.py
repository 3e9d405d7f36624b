"""A small consortium in a test's own folder, with real keys and certificates."""

from pathlib import Path

import numpy as np
from silomix_client.data.csv_file import CsvFile
from silomix_client.data.source import Source
from silomix_core.accounting.events import PrivacyTarget
from silomix_core.study.specification import Batching, Specification
from silomix_core.task.losses import LossName
from silomix_core.task.task import Feature, Scaling, Task
from silomix_lab.consortium.create import Addresses, Consortium, create
from silomix_lab.demo.run_demo import free_ports

SMALL_TASK = Task(
    loss=LossName.LOGISTIC,
    label="outcome",
    features=(Feature("age", 0.0, 100.0, 50.0), Feature("dose", -1.0, 1.0, 0.0)),
    scaling=Scaling.UNIT_BALL,
    bias=0.3,
)


def make_consortium(
    folder: Path,
    *,
    records: tuple[int, ...] = (40, 50, 60),
    mixes: int = 2,
    rounds: int = 5,
    epsilon: float = 2.0,
    delta: float = 1e-5,
    minimum_batch: int = 2,
    deadline_s: float = 5.0,
    lease_rounds: int = 50,
    lease_deadline_s: float = 600.0,
    wait_for_silos_s: float = 30.0,
    task: Task = SMALL_TASK,
    gate: bool = True,
    tokens: bool = True,
    participants: int | None = None,
    addresses: Addresses | None = None,
) -> Consortium:
    """Folders, keys, study file and random data of a consortium, on free loopback ports unless
    `addresses` says where its processes listen."""
    made = create(
        folder,
        task,
        records,
        Specification(
            name="test",
            algorithm="noisy-mb-sgd",
            most_rounds=rounds,
            radius=50.0,
            clip=0.25,
            target=PrivacyTarget(epsilon, delta),
            participants=participants,
            batching=Batching(minimum_batch, deadline_s, gate, tokens),
        ),
        addresses or loopback(mixes),
        lease_rounds=lease_rounds,
        lease_deadline_s=lease_deadline_s,
        wait_for_silos_s=wait_for_silos_s,
    )
    for index, (config, count) in enumerate(zip(made.silos, records, strict=True)):
        write_data(config.parent / "data.csv", task, count, seed=index)
    return made


def loopback(mixes: int) -> Addresses:
    ports = free_ports(4 + mixes)
    authority, fleet, channel, control, *chain = (f"127.0.0.1:{port}" for port in ports)
    return Addresses(fleet, channel, control, tuple(chain), authority)


def csv_path(source: Source) -> Path:
    """The file of a source that is a CSV file, as that of every silo here."""
    assert isinstance(source, CsvFile)
    return source.path


def write_data(path: Path, task: Task, count: int, seed: int) -> None:
    """A CSV of random records: the label leans on the first column."""
    rng = np.random.default_rng(seed)
    low = np.array([feature.low for feature in task.features])
    high = np.array([feature.high for feature in task.features])
    values = rng.uniform(low, high, size=(count, len(low)))
    labels = (values[:, 0] + rng.normal(0, 10, count) > (low[0] + high[0]) / 2).astype(int)
    lines = [",".join([*task.columns, task.label])]
    lines += [
        ",".join([*(f"{value:.6f}" for value in row), str(label)])
        for row, label in zip(values, labels, strict=True)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
