"""The receipts of an execution: requests to its principal, their completion, and the end."""

from typing import Any, Final

from apps.executions import reports
from apps.executions.models import ExecutionStep
from apps.executions.services.work import UnitOfWork
from apps.executions.states import Status, StepStatus
from apps.principals.models import Principal
from apps.receipts.models import Surface
from apps.receipts.services import ObligationDraft, ReceiptDraft

SOURCE: Final = "executions"
_EVENTS: Final = {
    Status.COMPLETE: "plan_complete",
    Status.PARTIAL: "plan_complete",
    Status.FAILED: "plan_failed",
    Status.BUDGET_EXCEEDED: "plan_failed",
    Status.CANCELED: "plan_canceled",
}
_TITLE: Final = 200


def request_result(work: UnitOfWork, step: ExecutionStep) -> str:
    """Ask the owner to combine results."""
    execution = work.execution
    wanted = step.definition.get("aggregate_step_ids") or step.depends_on
    instructions = work.readable(step, "synthesis_instructions")
    return _add(
        work,
        "aggregate_requested",
        step=step,
        title=f"Combine the results: {execution.intent}",
        summary=instructions or "Combine the results of the plan's steps.",
        metadata={
            "synthesis_instructions": instructions,
            "results": reports.results_for_receipt(work.steps, wanted),
        },
        suggested_next_step=f'submit_step_result(execution_id="{execution.ref}", step_id="{step.step_id}", result={{…}}, summary=…)',
        owed=True,
    )


def request_decision(work: UnitOfWork, step: ExecutionStep) -> str:
    """Ask the owner to decide."""
    execution = work.execution
    return _add(
        work,
        "escalation",
        step=step,
        title=f"Decide: {execution.intent}",
        summary=work.readable(step, "report_summary") or "The plan needs a decision.",
        metadata={
            "decision_required": True,
            "recommendation": work.readable(step, "recommendation"),
            "results": reports.results_for_receipt(work.steps),
        },
        suggested_next_step=f'decide_step(execution_id="{execution.ref}", step_id="{step.step_id}", decision="accept" | "reject"), by call_tool',
        owed=True,
    )


def report_upward(work: UnitOfWork, step: ExecutionStep) -> str | None:
    """Report to the principal that asked the owner, else to the owner's parent; None if there is neither."""
    execution = work.execution
    asker = execution.requested_by
    superior: Principal | None = execution.owner.parent if asker == execution.owner else asker
    if superior is None:
        return None
    lost = work.in_state(StepStatus.FAILED, StepStatus.SKIPPED, StepStatus.CANCELED)
    summary = None if lost else work.readable(step, "report_summary")
    status = Status.PARTIAL if lost else Status.COMPLETE
    return _add(
        work,
        "escalation",
        step=step,
        title=f"Report: {execution.intent}",
        summary=summary or reports.summary(execution.intent, status, work.steps),
        metadata={
            "decision_required": False,
            "recommendation": work.readable(step, "recommendation"),
            "original_receipt": execution.plan_receipt_id,
        },
        recipient_id=superior.pk,
        dedupe_key=f"escalation:report:{execution.plan_receipt_id}:{step.step_id}",
    )


def raise_alarm(work: UnitOfWork, step: ExecutionStep) -> str:
    """Tell the owner at once that a critical step failed."""
    error = step.error or {}
    return _add(
        work,
        "escalation",
        step=step,
        key="failed",
        title=f"Failed: {work.execution.intent}",
        summary=f"{step.step_id} failed: {error.get('message', 'no reason given')}",
        metadata={"error": error},
    )


def close_obligation(work: UnitOfWork, step: ExecutionStep, *, event_type: str, summary: str) -> None:
    """Close the obligation of the step's receipt: it was fulfilled, or is not wanted any more."""
    if step.receipt_id is None:
        return
    _add(
        work,
        event_type,
        step=step,
        title=None,
        summary=summary,
        metadata={"status": step.status},
        caused_by=step.receipt_id,
        pairs_with=step.receipt_id,
        surface=Surface.LEDGER,
    )


def announce_end(work: UnitOfWork, status: Status) -> str:
    """Close the plan's obligation with a receipt for the principal that asked for the plan.

    The receipt of a complete plan goes to the ledger, unless its answer was asked for; of any other end to the inbox. Of any other end an escalation
    tells the owner too, or the owner's parent if the owner asked itself. A principal whose own call caused the end gets
    nothing in its inbox.
    """
    execution = work.execution
    causes = {work.caller_id, execution.halted_by_id}
    title = f"Plan {status}: {execution.intent}"
    summary = reports.summary(execution.intent, status, work.steps, halted_why=execution.halted_why)
    metadata = {
        "status": status,
        "steps_complete": len(work.in_state(StepStatus.COMPLETE)),
        "steps_total": len(work.steps),
        "total_cost": float(execution.total_cost),
        "currency": "USD",
    }
    asked_itself = execution.requested_by_id == execution.owner_id
    other_id = execution.owner.parent_id if asked_itself else execution.owner_id
    if status != Status.COMPLETE and other_id is not None and other_id not in causes:
        _add(
            work,
            "escalation",
            key="end",
            title=title,
            summary=summary,
            metadata={**metadata, "decision_required": False, "original_receipt": execution.plan_receipt_id},
            recipient_id=other_id,
            dedupe_key=f"escalation:{_EVENTS[status]}:{execution.plan_receipt_id}",
        )
    is_news = execution.answers_inbox or (status != Status.COMPLETE and execution.requested_by_id not in causes)
    return _add(
        work,
        _EVENTS[status],
        key="end",
        title=title,
        summary=summary,
        metadata=metadata,
        pairs_with=execution.plan_receipt_id,
        artifact_pointer=execution.ref,
        artifact_location=SOURCE,
        recipient_id=execution.requested_by_id,
        surface=Surface.INBOX if is_news else Surface.LEDGER,
    )


def _add(
    work: UnitOfWork,
    event_type: str,
    *,
    step: ExecutionStep | None = None,
    key: str = "",
    title: str | None,
    metadata: dict[str, Any],
    owed: bool = False,
    **draft: Any,
) -> str:
    """Add a receipt to the unit of work; returns its future id.

    :param draft: further members of the receipt. Without them the owner gets it in its inbox, caused by the plan's receipt.
    """
    execution = work.execution
    names = {"execution_id": execution.ref, "plan_id": execution.plan_id}
    if step is not None:
        names["step_id"] = step.step_id
        key = f"{step.step_id}:{key}" if key else step.step_id
    obligation = ObligationDraft(debtor_id=execution.owner_id, creditor_id=execution.requested_by_id) if owed else None
    members: dict[str, Any] = {
        "recipient_id": execution.owner_id,
        "dedupe_key": f"{SOURCE}:{event_type}:{execution.ref}.{key}:v1",
        "caused_by": execution.plan_receipt_id,
        **draft,
    }
    return work.add_receipt(
        ReceiptDraft(
            source_system=SOURCE,
            event_type=event_type,
            title=None if title is None else title[:_TITLE],
            metadata={**names, **metadata},
            requires_action=owed,
            obligation=obligation,
            **members,
        )
    )
