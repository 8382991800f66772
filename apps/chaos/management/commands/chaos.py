"""Break the product on purpose, and read what was answered."""

import json
import secrets
import signal
from argparse import ArgumentParser
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from django.core.management.base import BaseCommand, CommandError

from apps.chaos import checker, drive, history, report
from apps.chaos.ground import Broken
from apps.chaos.history import History
from config.stack.processes import StackError

_SHOWN = 50


class Command(BaseCommand):
    help = (
        "Run the product on servers that come and go with the run, break it on purpose, and check everything that it "
        "answered. DATABASE_URL and REDIS_URL are left alone."
    )
    # It makes its own database; the one of the settings is none of its business.
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--minutes", type=float, default=1.0, metavar="N", help="how long (default: 1)")
        parser.add_argument("--seed", type=int, metavar="S", help="what chooses; the same seed chooses the same")
        parser.add_argument(
            "--rate", type=float, default=12.0, metavar="R", help="tasks a second of each requester, at most"
        )
        parser.add_argument("--pause", type=float, default=0.8, metavar="S", help="seconds between faults, on average")
        parser.add_argument("--report", metavar="FILE", help="write a page about the run there")
        parser.add_argument("--history", metavar="FILE", help="where the history is kept (default: chaos-SEED.jsonl)")
        parser.add_argument("--check", metavar="FILE", help="only check this history")

    def handle(self, *_args: Any, **options: Any) -> None:
        if options["check"]:
            self._judge(self._read(Path(options["check"])), options["report"])
            return
        if not 0 < options["minutes"] <= 24 * 60 or not 0 < options["rate"] <= 1000:  # noqa: PLR2004  # a day
            raise CommandError("--minutes is up to a day, --rate up to a thousand.")
        seed = secrets.randbelow(10**9) if options["seed"] is None else options["seed"]
        path = Path(options["history"] or f"chaos-{seed}.jsonl").resolve()
        self.stderr.write(f"seed {seed}, history in {path}")
        signal.signal(signal.SIGTERM, _end)
        plan = drive.Plan(
            seconds=options["minutes"] * 60,
            seed=seed,
            history=path,
            rate=options["rate"],
            pause=options["pause"],
            tell=lambda line: self.stderr.write(f"  {line}"),
        )
        try:
            drive.run(plan)
        except (StackError, Broken) as failure:
            raise CommandError(str(failure)) from failure
        told = self._read(path)
        self._judge(told, options["report"])

    def _read(self, path: Path) -> History:
        with path.open(encoding="utf-8") as lines:
            return history.read(lines)

    def _judge(self, told: History, page: str | None) -> None:
        violations = checker.check(told)
        if page:
            report.write(Path(page), told, violations)
        self.stdout.write(json.dumps(checker.summary(told, violations), indent=2))
        for violation in violations[:_SHOWN]:
            self.stdout.write(str(violation))
        if len(violations) > _SHOWN:
            self.stdout.write(f"… and {len(violations) - _SHOWN} more")
        if violations:
            raise SystemExit(1)


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
