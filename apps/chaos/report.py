"""What a run was, as a page for people."""

import os
import platform
from collections.abc import Sequence
from pathlib import Path

from apps.chaos.checker import PROMISES, Violation, summary
from apps.chaos.history import History


def write(path: Path, told: History, violations: Sequence[Violation]) -> None:
    """Write the page that tells of a run, and what the judge found in it."""
    world, figures = told.world, summary(told, violations)
    lines = [
        "# AsyncGate under chaos",
        "",
        (
            f"{figures['tasks']:,} tasks, {figures['runs']:,} runs, {sum(figures['calls'].values()):,} calls over HTTP,"
            f" {sum(figures['faults'].values()):,} faults, {world['seconds'] / 60:g} minutes and then rest: **{figures['violations']} violations**."
        ),
        f"Again: `manage.py chaos --minutes {world['seconds'] / 60:g} --rate {world['rate']:g} --pause {world['pause']:g} --seed {world['seed']}`.",
        "",
        (
            f"Machine: {os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()};"
            f" load {os.getloadavg()[2]:.1f} over the last quarter of an hour."
        ),
        "",
        (
            "Real processes: the web, two groups of Celery workers (the clock of the executors an hour off), beat,"
            " PostgreSQL, Valkey, requesters and workers over HTTP (their clocks an hour fast and slow)."
        ),
        "",
        *_table("tasks ended", figures["ends"]),
        *_table("calls", {**figures["calls"], "of all these without an answer": figures["unanswered"]}),
        *_table("faults", figures["faults"]),
        "What is checked:",
        "",
        *(f"- {promise.name}" for promise in PROMISES.values()),
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _table(title: str, figures: dict[str, int]) -> list[str]:
    return [f"| {title} | |", "|---|---:|", *(f"| {name} | {count:,} |" for name, count in figures.items()), ""]
