"""What tasks may use up: of their own, and of those that caused them.

A budget is taken from by what runs report, after the fact: it is gone over by no more than each run reports with the one
heartbeat that tells it so. From then on nothing that a run reports is taken any more, and nothing new may draw from it.
Rows of budgets are locked after tasks, by their ids, and before keys and inboxes.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Final
from uuid import UUID

from django.db import transaction

from apps.core.errors import FieldError, Invalid
from apps.core.ids import format_ref
from apps.core.sql import hot_cursor
from apps.principals.services import ASYNCGATE
from apps.principals.tenancy import Caller
from apps.tasks import sql
from apps.tasks.errors import BudgetExhausted, UnknownTask
from apps.tasks.fences import Lease
from apps.tasks.models import Budget, LiveTask
from apps.tasks.services import recording
from apps.tasks.services.recording import End
from apps.tasks.shapes import Beat, BudgetDraft, BudgetLeft, QueueRequest
from apps.tasks.states import CANCELS_SPENT, Outcome, Reason, Status, WhenSpent

MOST_BUDGETS: Final = 20
# So many receipts are followed up to the task that caused another.
_MOST_HOPS: Final = 50
ITS_OWN: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Funds:
    """What a new task draws from. `above` is the task whose budget was there before it."""

    caused_by: str | None
    above: int | None
    own: BudgetDraft | None

    @property
    def budget_id(self) -> int | None:
        return self.above if self.own is None else ITS_OWN


UNLIMITED: Final = Funds(caused_by=None, above=None, own=None)


def funds_of(
    *, requester: Caller, requests: Mapping[int, QueueRequest]
) -> dict[int, Funds | UnknownTask | BudgetExhausted | Invalid]:
    """What each of these requests, by their places, draws from, or why it may not. Asks nothing for those that nothing
    has caused.

    What is spent between this look and the commit of whoever asks is found by the sweep.
    """
    found = _found(
        requester, {nth: one for nth, one in requests.items() if one.parent or one.caused_by or one.replay_of}
    )
    answers: dict[int, Funds | UnknownTask | BudgetExhausted | Invalid] = {}
    for nth, request in requests.items():
        receipt_id, above, budgets, spent = found.get(nth, (None, None, 0, None))
        if request.parent is not None and receipt_id is None:
            answers[nth] = UnknownTask(f"There is no task {format_ref('task', request.parent)}.")
        elif spent is not None:
            answers[nth] = BudgetExhausted(
                f"The budget of {format_ref('task', spent)}, which this would draw from, is spent."
            )
        elif (fault := _fault(request.budget, budgets)) is not None:
            answers[nth] = fault
        else:
            caused_by = request.caused_by if request.caused_by or request.parent is None else receipt_id
            answers[nth] = Funds(caused_by=caused_by, above=above, own=request.budget)
    return answers


def keep(tenant_id: int, made: Mapping[int, tuple[Funds, datetime]]) -> None:
    """Note the budgets of tasks that are being queued, by their ids, each with its moment."""
    rows = [
        Budget(
            tenant_id=tenant_id,
            task_id=task_id,
            parent_id=funds.above,
            max_tokens=funds.own.tokens,
            max_cost_usd=None if funds.own.cost_usd is None else round(Decimal(funds.own.cost_usd), 6),
            when_spent=funds.own.when_spent,
            created_at=at,
        )
        for task_id, (funds, at) in made.items()
        if funds.own is not None
    ]
    if rows:
        Budget.objects.bulk_create(rows)


def spend(*, worker: Caller, spending: Mapping[Lease, Beat], budgets: Mapping[Lease, int | None]) -> set[Lease]:
    """Note what runs, whose tasks are locked, have used, and take it from their budgets; answers those that go on
    spending though they know that there is nothing left: of them nothing is noted.

    :param spending: by lease, the sum of all that its run has used.
    :param budgets: the tasks whose budgets they draw from; those that know are left out.
    """
    if not spending:
        return set()
    with hot_cursor() as cursor:
        cursor.execute(
            sql.SPEND,
            {
                "tenant": worker.tenant_id,
                "tasks": [lease.task_id for lease in spending],
                "fences": [lease.fence for lease in spending],
                "budgets": [budgets.get(lease) for lease in spending],
                "knowing": [lease not in budgets for lease in spending],
                "tokens": [beat.tokens for beat in spending.values()],
                "costs": [beat.cost_usd for beat in spending.values()],
            },
        )
        return {Lease(task_id, fence) for task_id, fence in cursor.fetchall()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """What is left for a task, and what becomes of it if a budget that it draws from is spent."""

    left: BudgetLeft
    when_spent: WhenSpent | None


def balances(budgets: Mapping[int, int]) -> dict[int, Balance]:
    """How it stands with each of these tasks, whose rows are locked, by the task whose budget it draws from; where one is
    spent, this marks the task: its holder is told, and it does not run again.
    """
    if not budgets:
        return {}
    with hot_cursor() as cursor:
        cursor.execute(sql.LEFT, {"tasks": list(budgets), "budgets": list(budgets.values())})
        return {
            task_id: Balance(
                left=BudgetLeft(tokens=tokens, cost_usd=None if cost is None else float(cost)),
                when_spent=None if policy is None else WhenSpent(policy),
            )
            for task_id, tokens, cost, policy in cursor.fetchall()
        }


def spent_end(
    *, task_id: int, cancels: bool, outcome: Outcome, fence: int | None = None, digest: bytes | None = None
) -> End:
    """How a task ends whose budget is spent."""
    message = "The budget that it draws from is spent."
    return End(
        task_id=task_id,
        fence=fence,
        status=Status.CANCELED if cancels else Status.FAILED,
        outcome=outcome,
        reason=Reason.BUDGET_EXHAUSTED,
        error={"code": "budget_exhausted", "message": message},
        summary=message,
        digest=digest,
    )


def told_end(
    *, task_id: int, flags: int, outcome: Outcome, fence: int | None = None, digest: bytes | None = None
) -> End:
    """How a task ends whose holder was told that its budget is spent."""
    return spent_end(task_id=task_id, cancels=bool(flags & CANCELS_SPENT), outcome=outcome, fence=fence, digest=digest)


@transaction.atomic
def end_unpaid(*, task_ids: Collection[int]) -> int:
    """End those of these tasks that nobody holds and whose budget is spent; says how many.

    Those that somebody else has at hand just now are passed over.
    """
    holds = recording.lock(task_ids, sql.LOCK_UNLESS_BUSY)
    drawing = LiveTask.objects.filter(task_id__in=list(holds), holder=None)
    rows = drawing.order_by("task_id").values_list("task_id", "budget_id")
    found = balances({task_id: budget_id for task_id, budget_id in rows if budget_id is not None})
    ends = [
        spent_end(task_id=task_id, cancels=balance.when_spent == WhenSpent.CANCEL, outcome=Outcome.CANCELED)
        for task_id, balance in sorted(found.items())
        if balance.when_spent is not None
    ]
    recording.settle(ends)
    return len(ends)


def _found(requester: Caller, caused: Mapping[int, QueueRequest]) -> dict[int, tuple[str, int | None, int, int | None]]:
    """By place: the receipt of the task that caused this, whose budget that draws from, how many there are, and which of
    them is spent.
    """
    if not caused:
        return {}
    # What is done again draws from where it did, whatever has become of the receipt of its end.
    parents = {nth: above for nth, one in caused.items() if (above := one.replay_of or one.parent) is not None}
    references = {nth: one.caused_by or "" for nth, one in caused.items() if nth not in parents}
    with hot_cursor() as cursor:
        cursor.execute(
            sql.FUNDED,
            {
                "gate": ASYNCGATE,
                "requester": requester.principal_id,
                "nths": list(references),
                "references": list(references.values()),
                "uuids": [_uuid(reference) for reference in references.values()],
                "children": list(parents),
                "parents": list(parents.values()),
                "replays": [nth for nth, one in caused.items() if one.replay_of is not None],
                "hops": _MOST_HOPS,
            },
        )
        return {nth: (receipt_id, budget_id, budgets, spent) for nth, receipt_id, budget_id, budgets, spent in cursor}


def _uuid(reference: str) -> UUID | None:
    try:
        return UUID(reference)
    except ValueError:
        return None


def _fault(draft: BudgetDraft | None, above: int) -> Invalid | None:
    if draft is None:
        return None
    if draft.tokens is None and draft.cost_usd is None:
        return Invalid("A budget limits tokens, or cost, or both.", errors=[FieldError("/budget", "limits nothing")])
    if above >= MOST_BUDGETS:
        fault = f"is under {above} others"
        return Invalid(
            f"{MOST_BUDGETS} budgets stand one under another at most.", errors=[FieldError("/budget", fault)]
        )
    return None
