"""Break the product on purpose and judge what it answered: `manage.py chaos [--tasks N] [--seed S]`."""

import argparse
import json
import secrets
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from config.stack.processes import StackError
from tests.chaos.ground import Broken
from tests.chaos.promises import PROMISES, violations
from tests.chaos.run import Plan, run, summary

_SHOWN = 50


def main(argv: Sequence[str]) -> int:
    """Run chaos, and print figures and violations."""
    checks = "\n".join(f"  {name}: {promise.__doc__}" for name, promise in PROMISES.items())
    parser = argparse.ArgumentParser(
        prog="manage.py chaos",
        description=__doc__,
        epilog=f"promises:\n{checks}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--tasks", type=int, default=1_500, metavar="N", help="run until N tasks are accepted")
    parser.add_argument("--seed", type=int, metavar="S", help="what chooses; the same seed chooses the same")
    parser.add_argument("--pause", type=float, default=1.0, metavar="SECONDS", help="between faults, on average")
    asked = parser.parse_args(argv)
    seed = secrets.randbelow(10**9) if asked.seed is None else asked.seed
    signal.signal(signal.SIGTERM, _end)
    _tell(f"seed {seed}")
    try:
        history = run(Plan(tasks=asked.tasks, seed=seed, pause=asked.pause, tell=_tell))
    except (StackError, Broken) as failure:
        sys.exit(str(failure))
    found = violations(history)
    print(json.dumps(summary(history, found), indent=2))
    for violation in found[:_SHOWN]:
        print(violation)
    if len(found) > _SHOWN:
        print(f"… and {len(found) - _SHOWN} more")
    return 1 if found else 0


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
