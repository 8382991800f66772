"""Executions go on over the kill of whatever carries them out, and nothing that was finished is done again."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from django.conf import settings

from tests.executions.killing import report
from tests.executions.killing.judge import RESULTS, WRITES, Call, Execution, Receipt, Step, Task, World, violations
from tests.executions.killing.run import ALL_BUT_POSTGRES, ALL_OF_THEM, Story, tell

_REPORT = Path(settings.BASE_DIR) / "docs" / "reports" / "executions.md"
BATCH = "b1"


@pytest.mark.ci
def test_executions_of_ten_steps_survive_the_kill_of_whatever_carries_them_out(tmp_path: Path) -> None:
    told = tell(Story(kills=5, seed=20261122, folder=tmp_path))

    assert violations(told.world) == []
    assert {one.status for one in told.world.executions} == {"complete"}
    assert all(kill.under_way for kill in told.kills)
    assert len({kill.target for kill in told.kills}) == 5


@pytest.mark.ci
def test_a_tool_that_may_not_be_run_twice_is_called_once_whatever_is_killed(tmp_path: Path) -> None:
    told = tell(Story(kills=4, seed=7, folder=tmp_path, targets=("worker-execute", ALL_OF_THEM), writes=True))

    assert violations(told.world) == []
    assert any(call.tool == WRITES for call in told.world.calls)


@pytest.mark.long
def test_executions_of_ten_steps_survive_fifty_kills(tmp_path: Path) -> None:
    story = Story(kills=50, seed=20261122, folder=tmp_path)
    told = tell(story)
    found = violations(told.world)
    report.write(_REPORT, story, told, found)

    assert found == []
    assert {one.status for one in told.world.executions} == {"complete"}
    assert all(kill.under_way for kill in told.kills)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("mutant", "complaint", "rest"),
    [("without_ticks", "ended executing", 30), ("without_memory", "after it was finished", 120)],
)
def test_without_what_carries_over_a_kill_the_judge_objects(
    mutant: str, complaint: str, rest: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEHOUSE_EXECUTIONS_MUTANT", mutant)
    mutated = Story(
        kills=1,
        seed=1,
        folder=tmp_path,
        # With the messages, and in the midst of calls: then nothing but a tick brings the execution on.
        targets=(ALL_BUT_POSTGRES,),
        calling=True,
        settings="tests.executions.killing.mutated",
        rest=rest,
    )

    found = violations(tell(mutated).world)

    assert any(complaint in fault for fault in found), found


def _receipt(receipt_id: str, event_type: str, **more: str | bool | None) -> Receipt:
    given = {"caused_by": None, "pairs_with": None, **more}
    return Receipt(receipt_id=receipt_id, event_type=event_type, **given)  # type: ignore[arg-type]  # as its fields are


def _envelope(step_id: str, tool: str | None, **more: object) -> dict[str, object]:
    name, made = RESULTS.get(tool or "", ("", ""))
    payload = {name: f"{BATCH}{made}"} if tool else None
    return {"plan_id": "plan-1", "step_id": step_id, "status": "complete", "payload": payload, **more}


def _step(step_id: str, step_type: str, tool: str | None = None, **more: object) -> Step:
    given = {"attempts": 1 if tool else 0, "ended": 10.0, "envelope": _envelope(step_id, tool), **more}
    return Step(step_id=step_id, step_type=step_type, tool=tool, status="complete", **given)  # type: ignore[arg-type]  # as its fields are


def good_world() -> World:
    """An execution with a call, a task and an aggregate, of which nothing is wrong."""
    task = Task(task_id=7, status="succeeded", fence=2, receipt_id="task-end", result_pointer="artifact:1")
    of_task = {"async_task_id": "task_7", "provenance": {"run_id": "run_2"}, "result_pointer": "artifact:1"}
    steps = [
        _step("step-1", "call_worker", "pick_apples"),
        _step(
            "step-2",
            "queue_execution",
            "wash_apples",
            envelope=_envelope("step-2", "wash_apples", **of_task),
            task=task,
        ),
        _step("step-3", "aggregate", receipt_id="asked"),
    ]
    execution = Execution(
        ref="exec_1",
        plan_id="plan-1",
        batch=BATCH,
        status="complete",
        plan_receipt="plan",
        terminal_receipt="end",
        steps=steps,
        task_ids=[7],
        traces=1,
    )
    receipts = [
        _receipt("root", "task_received"),
        _receipt("plan", "plan_created", caused_by="root", settled=True, closed_by="end"),
        _receipt("queued", "task_queued", caused_by="plan", task_ref="task_7", settled=True, closed_by="task-end"),
        _receipt("task-end", "task_complete", pairs_with="queued", task_ref="task_7"),
        _receipt("asked", "aggregate_requested", caused_by="plan", settled=True, closed_by="answered"),
        _receipt("answered", "aggregate_complete", caused_by="asked", pairs_with="asked"),
        _receipt("end", "plan_complete", caused_by="plan", pairs_with="plan"),
    ]
    calls = [
        Call(batch=BATCH, tool="pick_apples", began=1.0, ended=2.0),
        Call(batch=BATCH, tool="wash_apples", began=3.0, ended=None),
        Call(batch=BATCH, tool="wash_apples", began=5.0, ended=6.0),
    ]
    return World(executions=[execution], receipts=receipts, calls=calls)


def cut_off_world() -> World:
    """The same, but its task is of a tool that may not be run twice, and a run of it was cut off after it had called."""
    world = good_world()
    task = Task(task_id=7, status="failed", fence=2, receipt_id="task-end", result_pointer=None)
    envelope = _envelope(
        "step-2",
        None,
        status="failed",
        async_task_id="task_7",
        provenance={"run_id": "run_2"},
        result_pointer=None,
        error={"code": "outcome_unknown"},
    )
    world = _stepped(world, 1, tool=WRITES, status="failed", task=task, envelope=envelope)
    world = _received(_executed(world, status="partial"), "task-end", event_type="task_failed")
    cut_off = Call(batch=BATCH, tool=WRITES, began=3.0, ended=None)
    return replace(world, calls=[world.calls[0], cut_off], once=frozenset({WRITES}))


def _executed(world: World, **changes: object) -> World:
    return replace(world, executions=[replace(world.executions[0], **changes)])  # type: ignore[arg-type]  # as its fields are


def _stepped(world: World, number: int, **changes: object) -> World:
    steps = list(world.executions[0].steps)
    steps[number] = replace(steps[number], **changes)  # type: ignore[arg-type]  # as its fields are
    return _executed(world, steps=steps)


def _received(world: World, receipt_id: str, **changes: object) -> World:
    receipts = [
        replace(one, **changes) if one.receipt_id == receipt_id else one  # type: ignore[arg-type]  # as its fields are
        for one in world.receipts
    ]
    return replace(world, receipts=receipts)


def _without(world: World, receipt_id: str) -> World:
    return replace(world, receipts=[one for one in world.receipts if one.receipt_id != receipt_id])


def _called(world: World, tool: str = "pick_apples", **call: object) -> World:
    late = Call(batch=BATCH, tool=tool, **call)  # type: ignore[arg-type]  # as its fields are
    return replace(world, calls=[*world.calls, late])


def test_the_judge_has_nothing_against_a_good_execution() -> None:
    assert violations(good_world()) == []


def test_the_judge_has_nothing_against_what_is_not_run_twice_since_it_may_have_run() -> None:
    assert violations(cut_off_world()) == []
    assert violations(replace(cut_off_world(), calls=good_world().calls[:1])) == []


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (lambda world: replace(world, once=frozenset()), "ended partial"),
        (lambda world: _called(world, WRITES, began=5.0, ended=6.0), "2 times, and may be called once"),
        (lambda world: _executed(world, status="complete"), "ended complete"),
        (lambda world: _executed(world, status="failed"), "ended failed"),
        (lambda world: _executed(_stepped(world, 1, task=None), task_ids=[]), "is failed"),
        (lambda world: _stepped(world, 1, tool="wash_apples"), "is failed"),
        (lambda world: _stepped(world, 0, status="failed"), "is failed"),
        (lambda world: _received(world, "task-end", event_type="task_complete"), "is answered by ['task_complete']"),
    ],
)
def test_the_judge_objects_to_an_unknown_outcome_where_none_may_be(
    broken: Callable[[World], World], complaint: str
) -> None:
    found = violations(broken(cut_off_world()))

    assert any(complaint in fault for fault in found), found


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (lambda world: _executed(world, status="executing"), "ended executing"),
        (lambda world: _executed(world, traces=2), "2 traces"),
        (lambda world: _executed(world, task_ids=[7, 8]), "has the tasks [7, 8]"),
        (lambda world: _executed(world, terminal_receipt="other"), "though other is named"),
        (lambda world: _stepped(world, 0, status="failed"), "is failed"),
        (lambda world: _stepped(world, 0, envelope=_envelope("step-9", "pick_apples")), "another step's envelope"),
        (lambda world: _stepped(world, 0, envelope=_envelope("step-1", "wash_apples")), "found"),
        (
            lambda world: _stepped(
                world,
                1,
                envelope=_envelope(
                    "step-2",
                    "wash_apples",
                    async_task_id="task_7",
                    provenance={"run_id": "run_1"},
                    result_pointer="artifact:1",
                ),
            ),
            "its envelope tells",
        ),
        (lambda world: _called(world, began=10.1, ended=11.0), "ran again 0.100 s after it was finished"),
        (lambda world: _called(world, began=1.5, ended=None), "was called 2 times in 1 claims"),
        (lambda world: replace(world, calls=[]), "no call of pick_apples ended"),
        (lambda world: _without(world, "queued"), "has 0 task_queued receipts"),
        (lambda world: _received(world, "queued", caused_by="root"), "not caused by the plan's"),
        (lambda world: _without(world, "task-end"), "task_queued is answered by []"),
        (lambda world: _received(world, "asked", settled=False, closed_by=None), "aggregate_requested is owed still"),
        (lambda world: _without(world, "asked"), "nobody was asked"),
        (lambda world: _without(world, "root"), "the chain has no root"),
        (lambda world: _without(world, "plan"), "its plan has no receipt"),
        (
            lambda world: replace(
                world, receipts=[*world.receipts, _receipt("end-2", "plan_complete", pairs_with="plan")]
            ),
            "plan_created is answered by ['plan_complete', 'plan_complete']",
        ),
        (
            lambda world: replace(
                world, receipts=[*world.receipts, _receipt("asked-2", "aggregate_requested", caused_by="plan")]
            ),
            "asked 2 times for 1 results",
        ),
    ],
)
def test_the_judge_objects_to_each_broken_promise(broken: Callable[[World], World], complaint: str) -> None:
    found = violations(broken(good_world()))

    assert any(complaint in fault for fault in found), found
