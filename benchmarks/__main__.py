"""Measure the product beside its peers: `manage.py bench [SUITE…]`. A run has servers of its own."""

import argparse
import io
import json
import os
import secrets
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import django
from django.core.management import call_command

from benchmarks import suites
from config.stack.supervisor import Supervisor


def main(argv: Sequence[str]) -> int:
    """Run the suites that are asked for, and print their rows."""
    asked = _arguments(argv)
    environ = {name: text for name, text in os.environ.items() if name not in {"DATABASE_URL", "REDIS_URL"}}
    with Supervisor.of_a_run(environment=environ) as servers:
        servers.start_servers()
        _measure(asked, environ)
    return 0


def _measure(asked: argparse.Namespace, environ: dict[str, str]) -> None:
    os.environ |= environ | {
        "DJANGO_SETTINGS_MODULE": "benchmarks.settings",
        "GATEHOUSE_LOG_LEVEL": "WARNING",
        "GATEHOUSE_SECRET_KEY": secrets.token_urlsafe(48),
        # The hourly limit of a source is not what is measured.
        "SOURCE_RATE_LIMITS": '{"default": 1000000000}',
    }
    django.setup()
    # These need the settings.
    from benchmarks.bench import SCALES, Bench  # noqa: PLC0415
    from benchmarks.measure import HEADER  # noqa: PLC0415

    call_command("migrate", interactive=False, verbosity=0)
    call_command("sync_schedules", stdout=io.StringIO())
    scale = SCALES[asked.scale]
    scale = replace(scale, memories=asked.memories or scale.memories)
    bench = Bench.begin(scale, data=Path(environ["GATEHOUSE_DATA"]), file=asked.data)
    rows = []
    # With --json the lines tell how far it is.
    told = sys.stderr if asked.json else sys.stdout
    print(*(f"{name}: {value}" for name, value in bench.machine.items()), HEADER, sep="\n", file=told)
    try:
        for name in asked.suite:
            for row in suites.load(name)(bench):
                rows.append(replace(row, suite=name))
                print(rows[-1], file=told, flush=True)
    finally:
        bench.end()
    if asked.json:
        machine = {"command": " ".join(["manage.py bench", *sys.argv[1:]]), **bench.machine}
        print(json.dumps([{**asdict(row), "machine": machine} for row in rows], indent=2))


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="manage.py bench", description=__doc__)
    parser.add_argument(
        "suite", nargs="*", help=f"which: {', '.join(suites.SUITES)} (default: all that need no --data)"
    )
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
    if unknown := sorted(set(asked.suite) - suites.SUITES.keys()):
        parser.error(f"There is no suite {', '.join(unknown)}; there are {', '.join(suites.SUITES)}.")
    if asked.data is not None and not asked.data.exists():
        parser.error(f"There is no {asked.data}.")
    if asked.data is None and suites.NEEDS_DATA & set(asked.suite):
        parser.error(f"{', '.join(suites.NEEDS_DATA)}: needs --data.")
    asked.suite = asked.suite or [name for name in suites.SUITES if name not in suites.NEEDS_DATA]
    return asked


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
