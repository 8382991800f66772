"""Measure the product beside its baselines."""

import json
import signal
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from apps.bench import ground, report, suites
from config.stack.processes import StackError, die_with_parent


class Command(BaseCommand):
    help = (
        "Measure the product beside its baselines, on servers that come and go with the run. With DATABASE_URL and "
        "REDIS_URL set it uses those servers, with a database of its own."
    )
    # It makes its own database; the one of the settings is none of its business.
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "suite", nargs="*", help=f"which: {', '.join(suites.names())} (default: all without --data)"
        )
        length = parser.add_mutually_exclusive_group()
        length.add_argument("--quick", action="store_const", const="quick", dest="scale", help="a few minutes a suite")
        length.add_argument("--tiny", action="store_const", const="tiny", dest="scale", help="only see that it works")
        parser.set_defaults(scale="full")
        parser.add_argument("--receipts", type=int, metavar="N", help="how many receipts growth is measured at")
        parser.add_argument("--data", metavar="FILE", help="what a suite of quality is asked about: docs/benchmarks.md")
        parser.add_argument("--history", type=int, metavar="N", help="planning: learn from the first N past plans only")
        parser.add_argument("--json", action="store_true", help="print one object per row")
        parser.add_argument("--plot", metavar="DIR", help="write SVG charts there (needs matplotlib)")

    def handle(self, *_args: Any, suite: list[str], **options: Any) -> None:
        for name, least in (("receipts", 1), ("history", 0)):
            if options[name] is not None and options[name] < least:
                raise CommandError(f"--{name} must be {least} or more.")
        asked = {name: options[name] for name in ("scale", "receipts", "json", "history")}
        asked |= {name: options[name] and str(Path(options[name]).resolve()) for name in ("plot", "data")}
        asked["suites"] = _chosen(suite, options["data"])
        try:
            if options["plot"]:
                report.chart_library_is_there()
            code = _run(asked)
        except (StackError, report.NoChartLibrary) as failure:
            raise CommandError(str(failure)) from failure
        if code:
            raise SystemExit(code)


def _chosen(suite: list[str], data: str | None) -> list[str]:
    """The suites to run: those named, or all that need nothing that the user would have to bring."""
    if unknown := sorted(set(suite) - set(suites.names())):
        raise CommandError(f"There is no suite {', '.join(unknown)}; there are {', '.join(suites.names())}.")
    needing = [name for name in suites.names() if suites.needs_data(name)]
    if data is None and (lacking := sorted(set(suite) & set(needing))):
        raise CommandError(f"{', '.join(lacking)}: needs --data.")
    if data is not None and not Path(data).exists():
        raise CommandError(f"There is no {data}.")
    return suite or [name for name in suites.names() if name not in needing]


def _run(asked: dict[str, Any]) -> int:
    """The measuring itself is another process: its settings name the servers that this one prepares."""
    signal.signal(signal.SIGTERM, _end)
    with ground.prepared() as environment:
        child = subprocess.Popen(
            [sys.executable, "-m", "apps.bench", json.dumps(asked)],
            env={"GATEHOUSE_LOG_LEVEL": "WARNING", **environment},
            cwd=settings.BASE_DIR,
            preexec_fn=die_with_parent(signal.SIGTERM),  # noqa: PLW1509  # only prctl and getppid run between fork and exec
        )
        try:
            return child.wait()
        except BaseException:
            child.terminate()
            child.wait()
            raise


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
