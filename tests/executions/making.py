"""What tests of executions need, made by the product's own services."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from django.core.files.storage import storages

from apps.core.errors import only
from apps.core.sql import database_now
from apps.executions import selectors, services
from apps.executions.models import Execution
from apps.executions.services import Decision
from apps.executions.shapes import ExecutionReport
from apps.executions.states import Mode, Strategy
from apps.plans import selectors as plans
from apps.plans import services as planning
from apps.plans.documents import SUBMITTED, Plan
from apps.plans.shapes import Budget
from apps.principals.scopes import Kind
from apps.principals.services import DELEGATE
from apps.principals.tenancy import Caller
from apps.receipts.models import Obligation
from apps.tasks.lease_tokens import task_of
from apps.tasks.models import FinishedTask, LiveTask
from apps.tasks.services import running
from apps.tasks.services.running import NOTHING
from apps.tasks.shapes import Completion, LeasedTask, ReleaseTask
from apps.workers import services as registry
from apps.workers.trust import Tier
from tests.executions.workers import WorkerServer
from tests.factories import T0
from tests.workers.factories import NOTHING as NO_EFFECTS
from tests.workers.factories import enroll, make_key, signed
from tests.workers.servers import McpServer

ANY: dict[str, Any] = {"type": "object"}
TEXT: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}
TOOLS = {
    **dict.fromkeys(("echo", "shout", "hold", "say", "complain"), TEXT),
    **dict.fromkeys(("count_to", "break_down", "crash", "flood", "sum_up"), ANY),
}
APPROVAL = "R.approval.of.Lee"
HANDED = "artifact:sha256-" + "0" * 64
GIVES: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "length": {"type": "integer"}, "items": {"type": "array"}},
}


def _offered() -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "description": name,
            "input_schema": schema,
            **({"output_schema": GIVES} if schema is TEXT else {}),
        }
        for name, schema in TOOLS.items()
    ]


def make_worker(
    caller: Caller,
    server: WorkerServer | McpServer,
    worker_id: str = "texter",
    *,
    key: dict[str, str] | None = None,
    **changes: Any,
) -> str:
    """Register the running test server as a worker; by default its tools are fast and touch nothing.

    :param key: what signs its manifest.
    """
    manifest = {
        "worker_id": worker_id,
        "endpoint": server.endpoint,
        "tools": _offered(),
        "capabilities": ["text"],
        "constraints": {"max_payload_bytes": 100_000, "timeout_seconds": 20},
        "hints": {"expected_runtime": "fast"},
        "side_effects": NO_EFFECTS,
        **changes,
    }
    with caller.acting():
        registry.register(caller=caller, original=signed(manifest, key) if key else manifest)
    return worker_id


def make_writing_worker(caller: Caller, server: WorkerServer, worker_id: str = "writer", **changes: Any) -> str:
    """As above, but its tools change things, so that they may not be run twice."""
    key = make_key()
    with caller.acting():
        enroll(caller, key, ceiling=Tier.TRUSTED)
    writes = {"filesystem": "write", "network": "none", "execution": "none"}
    about = {"side_effects": writes, "trust": {"tier": "trusted"}, **changes}
    return make_worker(caller, server, worker_id, key=key, **about)


def call_step(step_id: str, tool_name: str = "echo", text: str = "hello", **more: Any) -> dict[str, Any]:
    return {
        "step_id": step_id,
        "step_type": "call_worker",
        "worker_id": "texter",
        "tool_name": tool_name,
        "params": {"text": text},
        **more,
    }


def queue_step(step_id: str, text: str = "hello", **more: Any) -> dict[str, Any]:
    return {**call_step(step_id, text=text), "step_type": "queue_execution", **more}


REPORT: dict[str, Any] = {
    "step_id": "report",
    "step_type": "escalate",
    "report_summary": "All done",
    "decision_required": False,
    "recommendation": "Read it",
}


def example_steps() -> list[dict[str, Any]]:
    """The shape of a code analysis: queue, wait, call, aggregate, report."""
    return [
        queue_step("step-1"),
        {"step_id": "step-2", "step_type": "wait_for", "wait_for_step_ids": ["step-1"]},
        call_step("step-3", "shout", "{{step-1.text}}", depends_on=["step-2"]),
        {
            "step_id": "step-4",
            "step_type": "aggregate",
            "aggregate_step_ids": ["step-1", "step-3"],
            "synthesis_instructions": "Combine both",
            "executor": "principal",
        },
        {**REPORT, "step_id": "step-5"},
    ]


def make_plan(
    caller: Caller,
    steps: list[dict[str, Any]],
    intent: str = "Do it",
    *,
    constraints: dict[str, float] | None = None,
) -> str:
    """A plan with just these steps, which the caller has made and submits.

    One that would be refused is kept unjudged, as if it had been valid once: of a worker that has gone since, say. So is
    one that a DeleGate has asked of the root.
    """
    document = {
        "plan_id": "mine",
        "delegate_id": DELEGATE,
        "principal_ai": caller.name,
        "intent": intent,
        "created_at": T0.isoformat(),
        "scope": "test",
        "steps": steps,
        "constraints": {"budget": constraints or {}},
    }
    if caller.kind == Kind.DELEGATE or plans.judged(document, tenant_id=caller.tenant_id)[0]:
        return _kept_unjudged(caller, document)
    return planning.submit(caller=caller, document=document, caused_by=None, now=T0).plan_id


def _kept_unjudged(caller: Caller, document: dict[str, Any]) -> str:
    plan = Plan.model_validate({**document, "proposer": SUBMITTED, "plan_id": planning.new_plan_id()})
    root = plans.delegate_named(DELEGATE)
    return planning.keep(caller=caller, delegate=root, plan=plan, caused_by=None, now=T0).plan_id


def money(amount: float) -> Decimal:
    """A cost of a report as rows hold it."""
    return Decimal(str(amount))


def failure(report: ExecutionReport, number: int = 0) -> dict[str, Any]:
    """The error of a report's result."""
    return report.results[number].error or {}


def begin(
    caller: Caller,
    steps: list[dict[str, Any]],
    *,
    mode: Mode = Mode.AUTO,
    strategy: Strategy = Strategy.SEQUENTIAL,
    budget: Budget | None = None,
    plan_id: str | None = None,
) -> Execution:
    """Store a plan with these steps and begin to carry it out; nothing is advanced yet."""
    with caller.acting():
        plan_id = plan_id or make_plan(caller, steps)
        return services.start(
            caller=caller, plan_id=plan_id, mode=mode, strategy=strategy, budget=budget or Budget(), now=T0
        )


def advance(execution: Execution, *, patience: timedelta | None = None) -> None:
    services.advance(tenant_id=execution.tenant_id, execution_id=execution.pk, patience=patience)


def run(caller: Caller, steps: list[dict[str, Any]], **more: Any) -> Execution:
    """As :func:`begin`, and advance it once."""
    execution = begin(caller, steps, **more)
    advance(execution)
    return execution


def report(caller: Caller, execution: Execution) -> ExecutionReport:
    with caller.acting():
        return selectors.report_on(selectors.execution_of(caller, execution.ref))


def statuses(caller: Caller, execution: Execution) -> dict[str, str]:
    return {step.step_id: step.status for step in report(caller, execution).steps}


def do_task(worker: Caller, content: Any = NOTHING, *, pointer: str | None = None) -> int:
    """Lease the next task as an outside worker and complete it with this result; answers its number."""
    grant = lease_task(worker)
    task_id = task_of(grant.task_id)
    delivery = running.prepare(tenant_id=worker.tenant_id, task_id=task_id, result=content, pointer=pointer)
    with worker.acting():
        proof: dict[str, Any] = {"task_id": task_id, "lease_token": grant.lease_token}
        completion = Completion(**proof, delivery=delivery, summary="Done by hand")
        only(running.complete_many([(worker, completion)]).answers)
    return task_id


def cancel(caller: Caller, execution: Execution, reason: str | None = None) -> None:
    with caller.acting():
        services.cancel(caller=caller, execution_ref=execution.ref, reason=reason)


def decide(caller: Caller, execution: Execution, decision: Decision, step_id: str = "report") -> None:
    with caller.acting():
        services.decide_step(caller=caller, execution_ref=execution.ref, step_id=step_id, decision=decision, note=None)


def submit(caller: Caller, execution: Execution, step_id: str = "step-4", pointer: str = HANDED) -> None:
    """Submit the result of an aggregate step."""
    with caller.acting():
        services.submit_step_result(
            caller=caller,
            execution_ref=execution.ref,
            step_id=step_id,
            result={"text": "both"},
            result_pointer=pointer,
            summary="Both say hello.",
        )


def cancel_task(caller: Caller) -> int:
    """Cancel the only open task; returns its number."""
    with caller.acting():
        task_id = LiveTask.objects.get().task_id
        running.cancel_many(caller=caller, task_ids=[task_id])
    return task_id


def lease_task(worker: Caller) -> LeasedTask:
    with worker.acting():
        (grant,) = running.lease(worker=worker, queues=("execute",), capacity=1)
    return grant


def release_task(worker: Caller, grant: LeasedTask) -> None:
    with worker.acting():
        released = ReleaseTask(task_id=grant.task_id, lease_token=grant.lease_token)
        only(running.release_many(worker=worker, releases=[released]))


def come_due(caller: Caller) -> None:
    """Let the waiting tasks begin now."""
    with caller.acting():
        LiveTask.objects.update(ready_at=database_now(), due_at=None)


def report_health(caller: Caller, status: str, worker_id: str = "texter") -> None:
    with caller.acting():
        registry.heartbeat(caller=caller, worker_id=worker_id, status=status, current_load=0, available=True)


def open_obligations(caller: Caller) -> int:
    with caller.acting():
        return Obligation.objects.filter(closed_at=None).count()


@contextmanager
def artifacts_away() -> Iterator[None]:
    """The storage of artifacts is out of reach until the block ends."""
    place = Path(storages["artifacts"].path(""))
    aside = place.with_name(f"{place.name}-aside")
    place.rename(aside)
    try:
        yield
    finally:
        aside.rename(place)


def ended(caller: Caller, task_id: int) -> str:
    with caller.acting():
        return FinishedTask.objects.get(task_id=task_id).status


def handmade(**changes: Any) -> dict[str, Any]:
    """A plan as somebody writes it, with all five types of steps."""
    return {
        "plan_id": "my-plan",
        "delegate_id": "delegate",
        "principal_ai": "Kee",
        "intent": "Say hello once Lee allows it",
        "created_at": "2026-01-03T20:15:00Z",
        "scope": "greetings",
        "steps": [
            queue_step("fetch"),
            {
                "step_id": "wait",
                "step_type": "wait_for",
                "wait_for_step_ids": ["fetch"],
                "wait_for_receipts": [APPROVAL],
            },
            call_step("shout", "shout", "{{fetch.text}}", depends_on=["wait"]),
            {
                "step_id": "both",
                "step_type": "aggregate",
                "aggregate_step_ids": ["fetch", "shout"],
                "synthesis_instructions": "Put both together.",
                "executor": "self",
            },
            {
                "step_id": "ask",
                "step_type": "escalate",
                "depends_on": ["both"],
                "report_summary": "Hello was said.",
                "decision_required": True,
                "recommendation": "Accept it.",
            },
        ],
        **changes,
    }
