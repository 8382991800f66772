"""How rows look: as a table, as JSON, as charts."""

import json
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from apps.bench.rows import Report, Row

_COLUMNS: Final = (
    "case",
    "unit",
    "ours",
    "baseline",
    "ratio",
    "p50",
    "p95",
    "p99",
    "SQL",
    "CPU µs",
    "clients",
    "batch",
    "goal",
)
_VERDICTS: Final = {True: "[green]met[/]", False: "[red]missed[/]", None: "not to be judged here"}
_A_FEW: Final = 10
_MANY: Final = 1000
_BAR: Final = 0.4


class NoChartLibrary(Exception):
    """Charts were asked for, and the library that draws them is not installed."""


def chart_library_is_there() -> None:
    """:raises NoChartLibrary: if it is not."""
    if find_spec("matplotlib") is None:
        raise NoChartLibrary(
            "Charts need matplotlib, which is not installed: .venv/bin/python -m pip install matplotlib"
        )


def print_table(report: Report, console: Console) -> None:
    """One table per suite, with the machine above it and the notes below."""
    console.print("  ".join(f"[dim]{name}[/] {value}" for name, value in report.machine.items()), highlight=False)
    for suite, rows in groupby(report.rows, key=lambda row: row.suite):
        table = Table(*_COLUMNS, title=suite, title_justify="left", header_style="bold")
        for column in table.columns[2:12]:
            column.justify = "right"
        told = list(rows)
        for row in told:
            table.add_row(*_cells(row))
        console.print(table)
        for row in told:
            if row.note:
                console.print(f"[dim]{row.case}:[/] {row.note}", highlight=False)


def as_json(report: Report) -> str:
    """One object per row."""
    return json.dumps(report.objects(), indent=2)


def plot(report: Report, folder: Path) -> list[Path]:
    """An SVG for each suite and unit, ours beside the baseline."""
    from matplotlib.figure import Figure  # noqa: PLC0415  # an extra, and slow to load

    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for (suite, unit), rows in groupby(sorted(report.rows, key=_chart_of), key=_chart_of):
        told = list(rows)
        figure = Figure(figsize=(10, 1.5 + 0.6 * len(told)), layout="constrained")
        axes = figure.subplots()
        for shift, name, values in (
            (-_BAR / 2, "ours", [row.ours for row in told]),
            (_BAR / 2, "baseline", [row.baseline or 0 for row in told]),
        ):
            bars = axes.barh([place + shift for place in range(len(told))], values, height=_BAR, label=name)
            axes.bar_label(bars, labels=[_number(value or None) for value in values], padding=3)
        axes.set_yticks(range(len(told)), [_titled(row) for row in told])
        axes.invert_yaxis()
        axes.set_xlabel(unit)
        axes.set_title(suite)
        axes.legend()
        path = folder / f"{suite}-{unit.replace('/', '-per-').replace(' ', '-')}.svg"
        figure.savefig(path)
        drawn.append(path)
    return drawn


def _titled(row: Row) -> str:
    about = [f"{count} {word}" for count, word in ((row.clients, "clients"), (row.batch, "a batch")) if count > 1]
    return f"{row.case} ({', '.join(about)})" if about else row.case


def _chart_of(row: Row) -> tuple[str, str]:
    return row.suite, row.unit


def _cells(row: Row) -> Sequence[str]:
    baseline = f"{_number(row.baseline)}\n[dim]{row.baseline_is}[/]" if row.baseline is not None else ""
    goal = f"{row.goal}\n{_VERDICTS[row.met]}" if row.goal else ""
    return (
        row.case,
        row.unit,
        _number(row.ours),
        baseline,
        "" if row.ratio is None else f"{row.ratio:.2f}",
        *(_number(value) for value in (row.p50, row.p95, row.p99)),
        "" if row.statements is None else str(row.statements),
        _number(row.cpu_us),
        str(row.clients),
        str(row.batch),
        goal,
    )


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if value >= _MANY:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= _A_FEW else f"{value:.2f}"
