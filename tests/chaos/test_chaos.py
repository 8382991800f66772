"""What is promised holds while real processes die, and would not without what it stands on."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from django.conf import settings

from apps.chaos import checker, drive, history, report
from apps.chaos.checker import PROMISES, Violation
from apps.chaos.faults import BREAKAGES
from apps.chaos.history import History
from apps.chaos.plans import Plans
from tests.chaos.mutants import MUTANTS

pytestmark = pytest.mark.ci

_REPORT = Path(settings.BASE_DIR) / "docs" / "reports" / "chaos.md"


def _judged(plan: drive.Plan) -> tuple[History, list[Violation]]:
    drive.run(plan)
    with plan.history.open(encoding="utf-8") as lines:
        told = history.read(lines)
    return told, checker.check(told)


def test_nothing_is_lost_doubled_or_answered_otherwise_while_processes_die(tmp_path: Path) -> None:
    told, violations = _judged(drive.Plan(seconds=60, seed=20261121, history=tmp_path / "history.jsonl"))

    assert [str(violation) for violation in violations] == []
    # It was chaos indeed.
    assert len({fault.name for fault in told.faults} & {breakage.name for breakage in BREAKAGES}) > 5
    assert len(told.tasks) > 100
    assert sum("expired" in task["runs"].values() for task in told.tasks.values()) > 5
    assert sum(call.weather != "clear" for call in told.calls) > 20


@pytest.mark.parametrize(
    ("mutant", "plans", "rule"),
    [
        ("without_fence", [(1, ["late", "slow"])], "no_stale_fence"),
        ("without_lock_order", [(1, ["slow"]), (1, ["complete"])], "no_deadlock"),
        ("without_single_transaction", [(1, ["complete"])], "all_or_none"),
    ],
)
def test_without_a_foundation_the_judge_objects(
    mutant: str, plans: Plans, rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mutant in MUTANTS
    monkeypatch.setenv("GATEHOUSE_CHAOS_MUTANT", mutant)
    mutated = drive.Plan(
        seconds=15,
        seed=1,
        history=tmp_path / "history.jsonl",
        plans=plans,
        settings="tests.chaos.mutated",
        breakages=False,
    )

    _, violations = _judged(mutated)

    assert PROMISES[rule].name in {violation.promise for violation in violations}


def test_a_driver_that_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    command = ["manage.py", "chaos", "--minutes", "5", "--seed", "1", "--history", str(tmp_path / "history.jsonl")]
    driver = subprocess.Popen([sys.executable, *command], cwd=settings.BASE_DIR, stderr=subprocess.PIPE, text=True)
    assert driver.stderr is not None
    try:
        # The second line comes after the first fault: everything runs by then.
        driver.stderr.readline()
        driver.stderr.readline()
        family = psutil.Process(driver.pid).children(recursive=True)
    finally:
        driver.kill()
        driver.wait()
        driver.stderr.close()

    _, alive = psutil.wait_procs(family, timeout=60)
    assert len(family) > 10
    assert alive == []


@pytest.mark.long
def test_the_promises_hold_for_a_hundred_thousand_tasks(tmp_path: Path) -> None:
    plan = drive.Plan(seconds=2400, seed=20261122, history=tmp_path / "history.jsonl", rate=80, pause=14)
    told, violations = _judged(plan)
    report.write(_REPORT, told, violations)

    assert [str(violation) for violation in violations] == []
    assert len(told.tasks) >= 100_000
