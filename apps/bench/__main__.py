"""Run suites on the ground that the environment names: ``python -m apps.bench``, as ``manage.py bench`` starts it."""

import io
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import django
from django.core.management import call_command
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

# Columns of a table that goes to a file.
_PAGE: Final = 200


def main(asked: dict[str, Any]) -> int:
    """Bring the database up to date, run what is asked for, tell it."""
    from apps.bench import bench, report, suites  # noqa: PLC0415  # need the settings
    from apps.bench.rows import Report  # noqa: PLC0415

    aside = Console(stderr=True)
    home = os.environ.get("GATEHOUSE_BENCH_HOME")
    scale = {"tiny": bench.TINY, "quick": bench.QUICK, "full": bench.FULL}[asked["scale"]]
    if asked["receipts"] is not None:
        scale = replace(scale, receipts=asked["receipts"])
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=aside,
        transient=True,
    ) as progress:
        task = progress.add_task("preparing a database", total=None)
        call_command("migrate", interactive=False, verbosity=0)
        call_command("sync_schedules", stdout=io.StringIO())
        run = bench.Bench.begun(
            scale,
            data=Path(os.environ["GATEHOUSE_DATA"]),
            home=None if home is None else Path(home),
            data_file=Path(asked["data"] or "."),
            history=asked["history"],
        )
        told = Report(machine=run.machine)
        try:
            for name in asked["suites"]:
                progress.update(task, description=f"{name}: …")
                for row in suites.load(name)(run):
                    told.rows.append(replace(row, suite=name))
                    progress.update(task, description=f"{name}: {row.case} measured")
        finally:
            run.processes.end()
    if asked["json"]:
        sys.stdout.write(report.as_json(told) + "\n")
    else:
        report.print_table(told, Console(width=None if sys.stdout.isatty() else _PAGE))
    for path in report.plot(told, Path(asked["plot"])) if asked["plot"] else ():
        aside.print(f"drew {path}")
    return 0


if __name__ == "__main__":
    django.setup()
    sys.exit(main(json.loads(sys.argv[1])))
