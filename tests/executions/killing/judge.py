"""What must be true of executions that were carried out while processes died. Plain Python over what was read."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

RESULTS: Final[Mapping[str, tuple[str, str]]] = {
    "pick_apples": ("apples_pointer", ">apples"),
    "wash_apples": ("clean_pointer", ">apples>clean"),
    "press_apples": ("juice_pointer", ">apples>clean>juice"),
    "ferment_juice": ("cider_id", ">apples>clean>juice>cider"),
    "taste_cider": ("note", ">apples>clean>juice>cider>taste"),
    "weigh_cider": ("note", ">apples>clean>juice>cider>weight"),
}
"""What each tool answers of a batch: the field, and what is made of the batch's name."""
WRITES: Final = "weigh_cider"
"""The tool that may be run once only, in a story that has such a one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call as the worker saw it."""

    batch: str
    tool: str
    began: float
    ended: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task that a step became, and how it ended."""

    task_id: int
    status: str
    fence: int
    receipt_id: str
    result_pointer: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    step_id: str
    step_type: str
    tool: str | None
    status: str
    attempts: int
    ended: float | None
    envelope: Mapping[str, Any] | None
    receipt_id: str | None = None
    task: Task | None = None

    @property
    def is_cut_off(self) -> bool:
        """Did it fail since an earlier run of its task may have called a tool that may not be run twice?"""
        error = (self.envelope or {}).get("error") or {}
        return (
            (self.status, error.get("code")) == ("failed", "outcome_unknown")
            and self.task is not None
            and (self.task.status, self.task.fence > 1) == ("failed", True)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    receipt_id: str
    event_type: str
    caused_by: str | None
    pairs_with: str | None
    task_ref: str | None = None
    settled: bool = False
    closed_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    ref: str
    plan_id: str
    batch: str
    status: str
    plan_receipt: str
    terminal_receipt: str | None
    steps: Sequence[Step]
    task_ids: Sequence[int]
    """All tasks that were ever queued for it."""
    traces: int


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    executions: Sequence[Execution]
    receipts: Sequence[Receipt]
    calls: Sequence[Call]
    once: frozenset[str] = frozenset()
    """Tools that may not be run twice. Where a run of such a task was cut off, what became of it is unknown, and is said."""


def violations(world: World) -> list[str]:
    """Every promise that is broken, in words."""
    receipts = {receipt.receipt_id: receipt for receipt in world.receipts}
    calls: dict[tuple[str, str], list[Call]] = defaultdict(list)
    answers: dict[str, list[Receipt]] = defaultdict(list)
    for call in world.calls:
        calls[call.batch, call.tool].append(call)
    for receipt in world.receipts:
        if receipt.pairs_with is not None:
            answers[receipt.pairs_with].append(receipt)
    found: list[str] = []
    for execution in world.executions:
        one = _Judged(execution, receipts, answers, calls, world.once)
        found += [f"{execution.ref}: {fault}" for fault in one.faults()]
    return found


@dataclass(frozen=True, slots=True)
class _Judged:
    execution: Execution
    receipts: Mapping[str, Receipt]
    answers: Mapping[str, list[Receipt]]
    calls: Mapping[tuple[str, str], list[Call]]
    once: frozenset[str]

    def faults(self) -> Iterator[str]:
        execution = self.execution
        if execution.status != ("partial" if any(map(self._may_end_unknown, execution.steps)) else "complete"):
            yield f"ended {execution.status}"
        for step in execution.steps:
            yield from (f"{step.step_id}: {fault}" for fault in self._of_step(step))
        tasks = sorted(step.task.task_id for step in execution.steps if step.task is not None)
        if sorted(execution.task_ids) != tasks:
            yield f"has the tasks {sorted(execution.task_ids)} for steps that know {tasks}"
        if execution.traces != 1:
            yield f"left {execution.traces} traces in memory"
        yield from self._of_the_plans_receipt()

    def _of_step(self, step: Step) -> Iterator[str]:
        if self._may_end_unknown(step) and step.tool and step.task is not None and step.envelope is not None:
            yield from self._of_number(step, step.tool)
            yield from self._of_task(step.task, step.envelope)
            return
        if step.status != "complete" or step.envelope is None or step.envelope["status"] != "complete":
            told = None if step.envelope is None else step.envelope.get("error") or step.envelope["status"]
            yield f"is {step.status}, its envelope says {told}"
            return
        if step.envelope["plan_id"] != self.execution.plan_id or step.envelope["step_id"] != step.step_id:
            yield "has another step's envelope"
        if step.tool is not None:
            yield from self._of_calls(step, step.tool)
            yield from self._of_result(step, step.tool, step.envelope)
        if step.task is not None:
            yield from self._of_task(step.task, step.envelope)
        if step.step_type == "aggregate":
            yield from self._of_hand_over(step)

    def _may_end_unknown(self, step: Step) -> bool:
        return step.tool in self.once and step.is_cut_off

    def _of_calls(self, step: Step, tool: str) -> Iterator[str]:
        calls = self.calls.get((self.execution.batch, tool), [])
        if not any(call.ended is not None for call in calls):
            yield f"is complete though no call of {tool} ended"
        late = [call for call in calls if step.ended is not None and call.began > step.ended]
        if late:
            yield f"ran again {late[0].began - (step.ended or 0):.3f} s after it was finished"
        yield from self._of_number(step, tool)

    def _of_number(self, step: Step, tool: str) -> Iterator[str]:
        called = len(self.calls.get((self.execution.batch, tool), []))
        most = step.attempts if step.task is None else step.task.fence
        if called > most:
            yield f"was called {called} times in {most} claims"
        if called > 1 and tool in self.once:
            yield f"was called {called} times, and may be called once"

    def _of_result(self, step: Step, tool: str, envelope: Mapping[str, Any]) -> Iterator[str]:
        name, made = RESULTS[tool]
        expected = {name: f"{self.execution.batch}{made}"}
        if envelope["payload"] != expected:
            yield f"found {envelope['payload']}, not {expected}"

    def _of_task(self, task: Task, envelope: Mapping[str, Any]) -> Iterator[str]:
        told = (envelope["async_task_id"], envelope["provenance"]["run_id"], envelope["result_pointer"])
        was = (f"task_{task.task_id}", f"run_{task.fence}", task.result_pointer)
        if told != was:
            yield f"its envelope tells of {told}, its task of {was}"
        queued = [
            receipt
            for receipt in self.receipts.values()
            if receipt.event_type == "task_queued" and receipt.task_ref == f"task_{task.task_id}"
        ]
        if len(queued) != 1:
            yield f"has {len(queued)} task_queued receipts"
            return
        if queued[0].caused_by != self.execution.plan_receipt:
            yield "its task's receipt is not caused by the plan's"
        ending = "task_failed" if task.status == "failed" else "task_complete"
        yield from self._closed(queued[0], by=ending, named=task.receipt_id)

    def _of_hand_over(self, step: Step) -> Iterator[str]:
        asked = self.receipts.get(step.receipt_id or "")
        if asked is None or asked.event_type != "aggregate_requested":
            yield "nobody was asked for it"
            return
        yield from self._closed(asked, by="aggregate_complete")

    def _of_the_plans_receipt(self) -> Iterator[str]:
        execution = self.execution
        plan = self.receipts.get(execution.plan_receipt)
        if plan is None:
            yield "its plan has no receipt"
            return
        root = self.receipts.get(plan.caused_by or "")
        if root is None or root.event_type != "task_received":
            yield "the chain has no root"
        yield from self._closed(plan, by="plan_complete", named=execution.terminal_receipt)
        asked = [one for one in self._effects() if one.event_type == "aggregate_requested"]
        wanted = sum(step.step_type == "aggregate" for step in execution.steps)
        if len(asked) != wanted:
            yield f"asked {len(asked)} times for {wanted} results"

    def _effects(self) -> list[Receipt]:
        return [one for one in self.receipts.values() if one.caused_by == self.execution.plan_receipt]

    def _closed(self, opened: Receipt, *, by: str, named: str | None = None) -> Iterator[str]:
        closers = self.answers.get(opened.receipt_id, [])
        if [closer.event_type for closer in closers] != [by]:
            yield f"{opened.event_type} is answered by {[closer.event_type for closer in closers]}"
            return
        if not opened.settled or opened.closed_by != closers[0].receipt_id:
            yield f"{opened.event_type} is owed still, or closed by another than {closers[0].receipt_id}"
        if named is not None and closers[0].receipt_id != named:
            yield f"{opened.event_type} is closed by {closers[0].receipt_id}, though {named} is named"
