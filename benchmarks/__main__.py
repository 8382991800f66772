"""Measure the product beside its peers: `manage.py bench [SUITE…]`. A run has servers of its own."""

import argparse
import io
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path

import django
from django.core.management import call_command

from benchmarks import suites
from config.stack.supervisor import Supervisor


def main(argv: Sequence[str]) -> int:
    """Run the suites that are asked for, and print their rows."""
    asked = _arguments(argv)
    environ = {name: text for name, text in os.environ.items() if name not in {"DATABASE_URL", "REDIS_URL"}} | {
        "DJANGO_SETTINGS_MODULE": "benchmarks.settings",
        "GATEHOUSE_LOG_LEVEL": "WARNING",
        # The hourly limit of a source is not what is measured.
        "SOURCE_RATE_LIMITS": '{"default": 1000000000}',
    }
    with Supervisor.of_a_run(environment=environ) as servers:
        servers.start_servers()
        os.environ.update(servers.environment)
        django.setup()
        # These need the settings.
        from benchmarks.bench import SCALES, Bench  # noqa: PLC0415
        from benchmarks.measure import HEADER  # noqa: PLC0415

        call_command("migrate", interactive=False, verbosity=0)
        call_command("sync_schedules", stdout=io.StringIO())
        scale = SCALES[asked.scale]
        scale = replace(scale, memories=asked.memories or scale.memories)
        bench = Bench.begin(servers, scale, asked.data)
        rows = []
        # With --json the lines tell how far it is.
        told = sys.stderr if asked.json else sys.stdout
        print(*(f"{name}: {value}" for name, value in bench.machine.items()), HEADER, sep="\n", file=told)
        for name in asked.suite or suites.SUITES:
            for row in import_module(f"benchmarks.suites.{name}").run(bench):
                rows.append(replace(row, suite=name))
                print(rows[-1], file=told, flush=True)
        if asked.json:
            machine = {"command": " ".join(["manage.py bench", *sys.argv[1:]]), **bench.machine}
            print(json.dumps([{**asdict(row), "machine": machine} for row in rows], indent=2))
    return 0


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="manage.py bench", description=__doc__)
    parser.add_argument("suite", nargs="*", help=f"which: {', '.join(suites.SUITES)} (default: all)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--quick", action="store_const", const="quick", dest="scale", help="a few minutes for a suite")
    length.add_argument("--tiny", action="store_const", const="tiny", dest="scale", help="only see that it works")
    parser.set_defaults(scale="full")
    parser.add_argument(
        "--data", metavar="PATH", type=Path, help="a file for recall or a folder for planning: docs/benchmarks.md"
    )
    parser.add_argument("--memories", metavar="N", type=int, help="memory: how many to store (default: by the length)")
    parser.add_argument("--json", action="store_true", help="print one object for each row")
    asked = parser.parse_args(argv)
    if unknown := sorted({*asked.suite} - {*suites.SUITES}):
        parser.error(f"There is no suite {', '.join(unknown)}; there are {', '.join(suites.SUITES)}.")
    if asked.data is not None and not asked.data.exists():
        parser.error(f"There is no {asked.data}.")
    return asked


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
