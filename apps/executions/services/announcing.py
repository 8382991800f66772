"""The receipts of an execution: what a principal must do, that it was done, and how it all ended."""

from typing import Any, Final

from apps.executions import reports
from apps.executions.models import Execution, ExecutionStep
from apps.executions.services.rounds import Round
from apps.executions.states import Status, StepStatus, Strategy
from apps.plans.shapes import StepType
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


def hand_over_aggregate(work: Round, step: ExecutionStep) -> str:
    """Ask the owner to combine results. A wait that nobody is told of is lost, so it goes to the inbox, at once."""
    execution = work.execution
    wanted = step.definition.get("aggregate_step_ids") or step.depends_on
    instructions = work.words(step, "synthesis_instructions")
    return _say(
        work,
        event_type="aggregate_requested",
        key=f"{step.step_id}",
        title=f"Combine the results: {execution.intent}",
        summary=instructions or "Combine the results of the plan's steps.",
        metadata={
            **_names(execution, step),
            "synthesis_instructions": instructions,
            "results": reports.within_a_receipt(reports.handed_over(work.lines, wanted)),
        },
        next_step=f'submit_step_result(execution_id="{execution.ref}", step_id="{step.step_id}", result={{…}})',
        owed=True,
    )


def ask_for_decision(work: Round, step: ExecutionStep) -> str:
    """Ask the owner to decide what the plan could not."""
    execution = work.execution
    return _say(
        work,
        event_type="escalation",
        key=f"{step.step_id}",
        title=f"Decide: {execution.intent}",
        summary=work.words(step, "report_summary") or "The plan needs a decision.",
        metadata={
            **_names(execution, step),
            "decision_required": True,
            "recommendation": work.words(step, "recommendation"),
            "results": reports.within_a_receipt(reports.results(work.lines)),
        },
        next_step=f'decide_step(execution_id="{execution.ref}", step_id="{step.step_id}", decision="accept" | "reject")',
        owed=True,
    )


def report_upward(work: Round, step: ExecutionStep) -> str | None:
    """Tell who stands above the owner: who asked it, else its parent. A top principal reads the execution's report."""
    execution = work.execution
    superior = _superior(execution)
    if superior is None:
        return None
    lost = bool(_lost(work))
    said = None if lost else work.words(step, "report_summary")
    return _say(
        work,
        event_type="escalation",
        key=f"{step.step_id}:{superior.name}",
        title=f"Report: {execution.intent}",
        summary=said or reports.summary(execution.intent, Status.PARTIAL if lost else Status.COMPLETE, work.lines),
        metadata={
            **_names(execution, step),
            "decision_required": False,
            "recommendation": work.words(step, "recommendation"),
            "original_receipt": execution.plan_receipt_id,
        },
        recipient_id=superior.pk,
        dedupe_key=f"escalation:report:{execution.plan_receipt_id}:{step.step_id}",
    )


def raise_alarm(work: Round, step: ExecutionStep) -> str:
    """Tell the owner at once that a step failed without which the plan can't go on."""
    execution = work.execution
    error = (step.envelope or {}).get("error") or {}
    return _say(
        work,
        event_type="escalation",
        key=f"{step.step_id}:failed",
        title=f"Failed: {execution.intent}",
        summary=f"{step.step_id} failed: {error.get('message', 'no reason given')}",
        metadata={**_names(execution, step), "error": error},
    )


def close_obligation(work: Round, step: ExecutionStep, *, event_type: str, summary: str) -> None:
    """Say in the ledger that what was asked with the step's receipt is done, or no longer wanted."""
    if step.receipt_id is None:
        return
    _say(
        work,
        event_type=event_type,
        key=step.step_id,
        title=None,
        summary=summary,
        metadata={**_names(work.execution, step), "status": step.status},
        caused_by=step.receipt_id,
        pairs_with=step.receipt_id,
        surface=Surface.LEDGER,
    )


def announce_end(work: Round, status: Status) -> str:
    """Close the plan's obligation: say its end to whoever owed it, who asked for the plan.

    A complete plan's end goes to the ledger. Any other comes to the inbox, and an escalation tells it to the owner too, or to
    the owner's parent where the owner has asked itself; but nobody is told what it knows.
    """
    execution = work.execution
    knowing = _knowing(work)
    title = f"Plan {status}: {execution.intent}"
    summary = reports.summary(execution.intent, status, work.lines, halted_why=execution.halted_why)
    metadata = {
        "execution_id": execution.ref,
        "plan_id": execution.plan_id,
        "status": status,
        "steps_complete": sum(line.status == "complete" for line in work.lines),
        "steps_total": len(work.steps),
        "total_cost": float(execution.total_cost),
        "currency": execution.currency,
    }
    asked_itself = execution.requested_by_id == execution.owner_id
    other_id = execution.owner.parent_id if asked_itself else execution.owner_id
    if status != Status.COMPLETE and other_id is not None and other_id not in knowing:
        _say(
            work,
            event_type="escalation",
            key="end",
            title=title,
            summary=summary,
            metadata={**metadata, "decision_required": False, "original_receipt": execution.plan_receipt_id},
            recipient_id=other_id,
            dedupe_key=f"escalation:{_EVENTS[status]}:{execution.plan_receipt_id}",
        )
    is_news = status != Status.COMPLETE and execution.requested_by_id not in knowing
    return _say(
        work,
        event_type=_EVENTS[status],
        key="end",
        title=title,
        summary=summary,
        metadata=metadata,
        pairs_with=execution.plan_receipt_id,
        artifact_pointer=execution.ref,
        recipient_id=execution.requested_by_id,
        surface=Surface.INBOX if is_news else Surface.LEDGER,
    )


def _superior(execution: Execution) -> Principal | None:
    """Who stands above the owner in what is carried out: who asked it, else its parent."""
    asker = execution.requested_by
    return execution.owner.parent if asker == execution.owner else asker


def _knowing(work: Round) -> frozenset[int | None]:
    """Who needs not be told how it ends: who brought that about by a call of its own, or has a receipt in its inbox that says it."""
    execution = work.execution
    found = {work.caller_id, execution.halted_by_id}
    if execution.strategy == Strategy.ESCALATE and any(step.critical for step in work.in_state(StepStatus.FAILED)):
        found.add(execution.owner_id)
    superior = _superior(execution)
    reported = [
        step.ended_nth or 0
        for step in work.in_state(StepStatus.COMPLETE)
        if step.step_type == StepType.ESCALATE and not step.definition.get("decision_required")
    ]
    if (
        superior is not None
        and reported
        and max(reported) > max((step.ended_nth or 0 for step in _lost(work)), default=0)
    ):
        found.add(superior.pk)
    return frozenset(found)


def _lost(work: Round) -> list[ExecutionStep]:
    return work.in_state(StepStatus.FAILED, StepStatus.SKIPPED, StepStatus.CANCELED)


def _names(execution: Execution, step: ExecutionStep) -> dict[str, Any]:
    return {"execution_id": execution.ref, "plan_id": execution.plan_id, "step_id": step.step_id}


def _say(
    work: Round,
    *,
    event_type: str,
    key: str,
    title: str | None,
    summary: str,
    metadata: dict[str, Any],
    next_step: str | None = None,
    owed: bool = False,
    recipient_id: int | None = None,
    dedupe_key: str | None = None,
    caused_by: str | None = None,
    pairs_with: str | None = None,
    artifact_pointer: str | None = None,
    surface: str = Surface.INBOX,
) -> str:
    execution = work.execution
    return work.say(
        ReceiptDraft(
            recipient_id=recipient_id or execution.owner_id,
            source_system=SOURCE,
            event_type=event_type,
            dedupe_key=dedupe_key or f"{SOURCE}:{event_type}:{execution.ref}.{key}:v1",
            title=None if title is None else title[:_TITLE],
            summary=summary,
            metadata=metadata,
            artifact_pointer=artifact_pointer,
            artifact_location=None if artifact_pointer is None else SOURCE,
            requires_action=owed,
            suggested_next_step=next_step,
            caused_by=caused_by or execution.plan_receipt_id,
            pairs_with=pairs_with,
            surface=surface,
            obligation=ObligationDraft(debtor_id=execution.owner_id, creditor_id=execution.requested_by_id)
            if owed
            else None,
        )
    )
