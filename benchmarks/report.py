"""What is measured, and how it is shown: rows with ours, a peer in the same run, and the ratio of the two."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from statistics import median, quantiles
from typing import Any, Final, Self

from rich.console import Console
from rich.table import Table

_COLUMNS: Final = ("case", "unit", "ours", "peer", "ratio", "p50 ms", "p99 ms", "SQL", "clients", "batch", "goal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One stretch of measuring. A unit is what the case counts; an operation may do several."""

    units: int
    seconds: float
    latencies: Sequence[float] = ()
    """Seconds of each operation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Slices of ours and of a peer, taken in turns, so that what disturbs one disturbs the other."""

    ours: Sequence[Slice]
    peer: Sequence[Slice] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the report. `ratio` is ours over the peer's: the median of the rounds."""

    case: str
    unit: str
    ours: float
    peer: float | None = None
    peer_is: str = ""
    ratio: float | None = None
    p50: float | None = None
    """Milliseconds of an operation."""
    p99: float | None = None
    statements: int | None = None
    """SQL statements of one operation, transaction control included."""
    clients: int = 1
    batch: int = 1
    goal: str = ""
    met: bool | None = None
    note: str = ""
    suite: str = ""

    @classmethod
    def of_rates(cls, compared: Comparison, **about: Any) -> Self:
        """Units per second."""
        return cls._of(compared, [[one.units / one.seconds for one in side] for side in _sides(compared)], **about)

    @classmethod
    def of_latencies(cls, compared: Comparison, **about: Any) -> Self:
        """Milliseconds of an operation: the median."""
        values = [[1e3 * median(one.latencies) for one in side] for side in _sides(compared)]
        return cls._of(compared, values, unit="ms", **about)

    @classmethod
    def _of(cls, compared: Comparison, values: list[list[float]], **about: Any) -> Self:
        ours, peer = values
        ratios = [one / other for one, other in zip(ours, peer, strict=False) if other]
        return cls(
            ours=median(ours),
            peer=median(peer) if peer else None,
            ratio=median(ratios) if ratios else None,
            **percentiles([latency for one in compared.ours for latency in one.latencies]),
            **about,
        )

    def judged(self, goal: str, *, met: bool | None) -> Self:
        """The same row, held to a goal."""
        return replace(self, goal=goal, met=met)

    def at_least(self, times: float) -> Self:
        """The same row, held to so many times its peer."""
        return self.judged(f"{times:g} or more", met=self.ratio is not None and self.ratio >= times)

    def at_most(self, times: float) -> Self:
        """The same row, held to so many times its peer or less."""
        return self.judged(f"{times:g} or less", met=self.ratio is not None and self.ratio <= times)

    def cells(self) -> list[str]:
        """The row as the table shows it."""
        peer = "" if self.peer is None else f"{_number(self.peer)}\n[dim]{self.peer_is}[/]"
        numbers = ["" if value is None else _number(value) for value in (self.ratio, self.p50, self.p99)]
        verdict = {True: "[green]met[/]", False: "[red]missed[/]", None: ""}[self.met]
        statements = "" if self.statements is None else str(self.statements)
        goal = f"{self.goal}\n{verdict}" if self.goal else ""
        sizes = [str(self.clients), str(self.batch)]
        return [self.case, self.unit, _number(self.ours), peer, *numbers, statements, *sizes, goal]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All rows of a run, and the machine that they are true of."""

    machine: dict[str, Any]
    rows: list[Row] = field(default_factory=list)

    def objects(self) -> list[dict[str, Any]]:
        """One object for each row."""
        return [{**asdict(row), "machine": self.machine} for row in self.rows]

    def print(self, console: Console) -> None:
        """Print one table for each suite, with the machine above and the notes below."""
        console.print("  ".join(f"[dim]{name}[/] {value}" for name, value in self.machine.items()), highlight=False)
        for suite, rows in groupby(self.rows, key=lambda row: row.suite):
            table = Table(*_COLUMNS, title=suite, title_justify="left", header_style="bold")
            shown = list(rows)
            for row in shown:
                table.add_row(*row.cells())
            console.print(table)
            for row in shown:
                if row.note:
                    console.print(f"[dim]{row.case}:[/] {row.note}", highlight=False)


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """The percentiles of a row, in milliseconds; empty if nothing was timed."""
    if len(seconds) < 2:  # noqa: PLR2004  # quantiles need two
        return dict.fromkeys(("p50", "p99"), seconds[0] * 1e3) if seconds else {}
    cuts = quantiles(seconds, n=100, method="inclusive")
    return {"p50": cuts[49] * 1e3, "p99": cuts[98] * 1e3}


def _sides(compared: Comparison) -> tuple[Sequence[Slice], Sequence[Slice]]:
    return compared.ours, compared.peer


def _number(value: float) -> str:
    if value >= 1000:  # noqa: PLR2004
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"  # noqa: PLR2004
