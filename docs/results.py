"""Writes results.md and results.svg from one run, beside it or where it is told: docs/results.py [FOLDER] <rows.json"""

import json
import platform
import re
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

import pygal
from pygal.style import CleanStyle

HERE = Path(__file__).parent
LIBRARIES = ("django", "psycopg", "celery", "redis", "procrastinate", "uvicorn", "mcp")
COLUMNS = {
    "case": "",
    "ours": "ours",
    "peer": "peer",
    "ratio": "ratio",
    "p50": "p50 ms",
    "p99": "p99 ms",
    "statements": "SQL",
}


def written(rows: list[dict[str, Any]], folder: Path) -> None:
    """Write the page and its chart from the rows of a run."""
    held = [row for row in rows if row["ratio"]]
    chart = pygal.HorizontalBar(
        style=CleanStyle(label_font_size=11, value_font_size=10),
        js=[],
        logarithmic=True,
        show_legend=False,
        print_values=True,
        height=60 + 22 * len(held),
        width=1100,
        title="How many times as fast as its peer (1 is equal)",
    )
    times = [round(1 / row["ratio"] if row["unit"] == "ms" else row["ratio"], 3) for row in held]
    chart.range = (min(times) / 2, max(times))
    chart.zero = min(times) / 2
    chart.y_labels = [scale for scale in (0.01, 0.1, 1, 10, 100) if min(times) / 2 < scale < max(times)]
    # A bar for each row, the first at the top.
    chart.x_labels = [f"{row['suite']}: {_case(row)} / {row['peer_is']}" for row in reversed(held)]
    chart.add("", times[::-1])
    chart.render_to_file(str(folder / "results.svg"))

    machine = {
        "measured": f"{datetime.now(UTC):%Y-%m-%d}",
        "Gatehouse": _commit(),
        "processor": f"{_processor()}, {rows[0]['machine'].pop('cores')} cores, {platform.machine()}, {platform.system()}",
        **{name.replace("_", " "): value for name, value in rows[0]["machine"].items()},
        **{name: version(name) for name in LIBRARIES},
    }
    lines = [
        "# Benchmark results",
        "",
        "One run, written by `docs/results.py`. [Benchmarks](benchmarks.md) tells how to",
        "repeat it, and what the columns mean. Figures of another machine differ; their ratios differ less.",
        "`ratio` is the median of the rounds' ratios, so it may differ from that of the two medians beside it.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in machine.items()),
        "",
        "![Bars: how many times as fast as its peer each row is](results.svg)",
    ]
    for suite, ours in groupby(rows, lambda row: row["suite"]):
        lines += ["", f"## {suite}", "", "| " + " | ".join([*COLUMNS.values(), "goal"]) + " |"]
        lines += ["|---|" + "--:|" * (len(COLUMNS) - 1) + "---|"]
        for row in ours:
            goal = f"{row['goal']}: {'met' if row['met'] else 'missed'}" if row["goal"] else ""
            beside = f" beside {row['peer_is']}" if row["peer_is"] else ""
            row["case"] = f"{_case(row)}: {row['unit']}{beside}" + (f" ({row['note']})" if row["note"] else "")
            lines.append(f"| {' | '.join([*(_cell(row[name]) for name in COLUMNS), goal])} |")
    (folder / "results.md").write_text("\n".join(lines) + "\n")


def _commit() -> str:
    told = subprocess.run(["git", "log", "-1", "--format=%h"], cwd=HERE, capture_output=True, text=True, check=True)  # noqa: S607
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
    return f"{project['version']}, commit {told.stdout.strip()}"


def _processor() -> str:
    told = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", told.read_text()) if told.exists() else None
    return found[1] if found else platform.processor()


def _case(row: dict[str, Any]) -> str:
    clients = f", {row['clients']} clients" if row["clients"] > 1 else ""
    return f"{row['case']}{clients}{', ' + str(row['batch']) + ' at a time' if row['batch'] > 1 else ''}"


def _cell(value: float | str | None) -> str:
    if isinstance(value, str) or value is None:
        return (value or "").replace("|", "/")
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004  # three digits of any figure


if __name__ == "__main__":
    written(json.load(sys.stdin), Path(*sys.argv[1:2] or [HERE]))
