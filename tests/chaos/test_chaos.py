"""What is promised holds while real processes die."""

from collections import Counter

import pytest

from tests.chaos.ground import BREAKAGES
from tests.chaos.promises import violations
from tests.chaos.run import Chaos


@pytest.mark.parametrize(
    "tasks", [pytest.param(300, marks=pytest.mark.ci), pytest.param(10_000, marks=pytest.mark.long)]
)
def test_promises_hold_while_processes_die(tasks: int) -> None:
    told: list[str] = []
    history = Chaos(tasks=tasks, seed=20261121, pause=0.5, soak=1.0, tell=told.append).run()

    assert violations(history) == []
    assert {fault.name for fault in history.faults} >= {breakage.name for breakage in BREAKAGES}
    assert sum('"latency": {"queue": ' in line for line in told) == 10
    assert len(history.accepted) >= tasks
    assert history.executions
    ends = Counter(task["status"] for task in history.tasks.values())
    assert min(ends["succeeded"], ends["failed"], ends["canceled"]) > 0
