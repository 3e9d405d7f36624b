"""What a person sees while the demo runs: one live screen, or plain lines."""

from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from silomix_lab.consortium.processes import Process, Role


@dataclass(frozen=True, slots=True)
class Moment:
    """The state of the demo at one instant."""

    seconds: float
    rounds: int
    progress: list[dict[str, float]]
    processes: list[Process]
    epsilon_spent: Mapping[str, float]
    epsilon: float


class PlainDisplay:
    """A display that prints a line for every round, and for every process that ends."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown = 0
        self._ended: set[str] = set()

    def __enter__(self) -> "PlainDisplay":
        return self

    def __exit__(self, *_: object) -> None:
        return

    def show(self, moment: Moment) -> None:
        for line in moment.progress[self._shown :]:
            self._console.print(_round_line(line, moment.rounds), highlight=False)
        self._shown = len(moment.progress)
        for process in moment.processes:
            if process.state != "running" and process.name not in self._ended:
                self._ended.add(process.name)
                self._console.print(f"{process.name} {process.state}", highlight=False)


class LiveDisplay:
    """A display on one live screen: processes, their last events, round, loss, batch and ε."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> "LiveDisplay":
        self._live.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.__exit__(None, None, None)

    def show(self, moment: Moment) -> None:
        self._live.update(Group(_study_panel(moment), _process_table(moment)))


def _study_panel(moment: Moment) -> Panel:
    last = moment.progress[-1] if moment.progress else None
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", min_width=18)
    grid.add_column()
    done = int(last["round"]) if last else 0
    bar = Table.grid(padding=(0, 1))
    bar.add_row(
        ProgressBar(total=moment.rounds, completed=done, width=40), f"{done} of {moment.rounds}"
    )
    grid.add_row("round", bar)
    if last:
        grid.add_row("loss on hold-out", f"{last['loss']:.4f} (error {100 * last['error']:.1f} %)")
        grid.add_row("reports in batch", _came(last, " of "))
    spent = max(moment.epsilon_spent.values(), default=0.0)
    grid.add_row(
        "ε spent",
        f"{spent:.3f} of {moment.epsilon:g} (the silo that spent most; per record, one replaced)",
    )
    return Panel(grid, title=f"silomix demo, {moment.seconds:.0f} s", title_align="left")


def _process_table(moment: Moment) -> Table:
    table = Table(expand=True, box=None, padding=(0, 1))
    table.add_column("process", no_wrap=True, min_width=8)
    table.add_column("state", no_wrap=True, min_width=7)
    table.add_column("ε spent", no_wrap=True, min_width=7)
    table.add_column("pid", no_wrap=True, min_width=6)
    table.add_column("last event", no_wrap=True, ratio=1, overflow="ellipsis")
    for process in moment.processes:
        style = "" if process.state == "running" else "red"
        spent = moment.epsilon_spent.get(process.name)
        table.add_row(
            process.name,
            Text(process.state, style=style),
            f"{spent:.3f}" if process.role is Role.SILO and spent is not None else "",
            str(process.child.pid),
            process.last_event(),
        )
    return table


def _came(line: dict[str, float], of: str) -> str:
    abstained = int(line["abstained"])
    told = f" ({abstained} abstain)" if abstained else ""
    return f"{int(line['accepted']) + abstained}{of}{int(line['asked'])}{told}"


def _round_line(line: dict[str, float], rounds: int) -> str:
    void = " (void: too few reports)" if line["void"] else ""
    return (
        f"round {int(line['round']):>3}/{rounds}  loss {line['loss']:.4f}  "
        f"error {100 * line['error']:5.2f} %  "
        f"reports {_came(line, '/')}  "
        f"{1000 * line['seconds']:6.1f} ms{void}"
    )
