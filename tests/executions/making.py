"""What tests of executions need, made by the product's own services."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.core.files.storage import storages

from apps.digests import services as digests
from apps.executions import selectors, services
from apps.executions.models import Execution
from apps.executions.selectors import Report
from apps.executions.services import Budget
from apps.executions.states import Mode, Strategy
from apps.plans.models import Delegate, Plan, WaitingPlan
from apps.principals.selectors import principal_named
from apps.principals.services import DELEGATE
from apps.principals.tenancy import Caller
from apps.receipts.services import ObligationDraft, Poster, ReceiptDraft
from apps.tasks import services as tasks
from apps.tasks.models import TerminalRecord
from apps.tasks.services.artifacts import NOTHING
from apps.workers import services as workers
from apps.workers.trust import Tier
from tests.executions.workers import WorkerServer
from tests.factories import T0
from tests.workers.factories import NOTHING as NO_EFFECTS
from tests.workers.factories import enroll, make_key, signed

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


def make_worker(caller: Caller, server: WorkerServer, worker_id: str = "texter", **changes: Any) -> str:
    """Register the running test server as a worker; by default its tools are fast and touch nothing."""
    manifest = {
        "worker_id": worker_id,
        "endpoint": server.endpoint,
        "tools": [{"name": name, "description": name, "input_schema": schema} for name, schema in TOOLS.items()],
        "capabilities": ["text"],
        "constraints": {"max_payload_bytes": 100_000, "timeout_seconds": 20},
        "hints": {"expected_runtime": "fast"},
        "side_effects": NO_EFFECTS,
        **changes,
    }
    with caller.acting():
        workers.register(caller=caller, original=manifest)
    return worker_id


def make_writing_worker(caller: Caller, server: WorkerServer, worker_id: str = "writer") -> str:
    """As above, but its tools change things, so that they may not be run twice."""
    key = make_key()
    writes = {"filesystem": "write", "network": "none", "execution": "none"}
    with caller.acting():
        enroll(caller, key, ceiling=Tier.TRUSTED)
        manifest = signed(
            {
                "worker_id": worker_id,
                "endpoint": server.endpoint,
                "tools": [
                    {"name": name, "description": name, "input_schema": schema} for name, schema in TOOLS.items()
                ],
                "hints": {"expected_runtime": "fast"},
                "side_effects": writes,
                "trust": {"tier": "trusted"},
            },
            key,
        )
        workers.register(caller=caller, original=manifest)
    return worker_id


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
    """A stored plan with just these steps, and its receipt, which the caller owes an end."""
    plan_id = f"plan-{secrets.token_hex(6)}"
    root, _ = Delegate.objects.get_or_create(
        tenant_id=caller.tenant_id,
        delegate_id=DELEGATE,
        defaults={"principal": principal_named(DELEGATE), "created_at": T0},
    )
    posted = digests.post(
        poster=Poster(tenant_id=caller.tenant_id, principal_id=root.principal_id, name=DELEGATE),
        draft=ReceiptDraft(
            recipient_id=caller.principal_id,
            source_system=DELEGATE,
            event_type="plan_created",
            dedupe_key=f"delegate:plan_created:{plan_id}:v1",
            summary=intent,
            surface="ledger",
            requires_action=True,
            obligation=ObligationDraft(debtor_id=caller.principal_id, creditor_id=root.principal_id),
        ),
        now=T0,
    )
    plan = Plan.objects.create(
        tenant_id=caller.tenant_id,
        plan_id=plan_id,
        delegate=root,
        principal_id=caller.principal_id,
        intent=intent,
        status="ready",
        scope="test",
        confidence=1.0,
        document={"plan_id": plan_id, "intent": intent, "steps": steps, "constraints": constraints or {}},
        plan_hash="0" * 64,
        planner_version="test",
        registry_epoch=0,
        history_epoch=0,
        receipt_id=posted.receipt_id,
        receipt_uuid=posted.uuid,
        created_at=T0,
    )
    WaitingPlan.objects.create(tenant_id=caller.tenant_id, plan=plan, expires_at=T0 + timedelta(days=7))
    return plan_id


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


def report(caller: Caller, execution: Execution) -> Report:
    with caller.acting():
        return selectors.report(caller, execution.ref)


def statuses(caller: Caller, execution: Execution) -> dict[str, str]:
    return {step.step_id: step.status for step in report(caller, execution).steps}


def do_task(worker: Caller, content: Any = NOTHING, *, pointer: str | None = None, queue: str = "execute") -> int:
    """Lease the next task as an outside worker and complete it with this result; answers its number."""
    with worker.acting():
        (grant,) = tasks.lease(worker=worker, queues=(queue,), capacity=1)
    delivery = tasks.prepare(tenant_id=worker.tenant_id, task_id=grant.task_id, result=content, pointer=pointer)
    with worker.acting():
        tasks.complete(
            worker=worker,
            task_id=grant.task_id,
            lease_token=grant.lease_token,
            delivery=delivery,
            summary="Done by hand",
        )
    return grant.task_id


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
        return TerminalRecord.objects.get(task_id=task_id).status
