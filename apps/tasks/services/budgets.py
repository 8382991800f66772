"""What a task may use up, as its runs report it.

A budget is exceeded by one heartbeat at most: what a run reports after the order to stop is not taken.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from apps.core.errors import FieldError, Invalid
from apps.core.sql import fetch
from apps.tasks import sql
from apps.tasks.lease_tokens import Lease
from apps.tasks.models import Budget, run_key
from apps.tasks.shapes import BudgetInput, BudgetLeft, SpendInput


def check(draft: BudgetInput | None) -> None:
    """:raises Invalid: if the budget limits nothing."""
    if draft is not None and draft.tokens is None and draft.cost_usd is None:
        raise Invalid("A budget limits tokens, or cost, or both.", errors=[FieldError("/budget", "limits nothing")])


def keep(tenant_id: int, made: Mapping[int, tuple[BudgetInput | None, datetime]]) -> None:
    """Note the budgets of tasks that are being queued, by their ids, each with its time."""
    rows = [
        Budget(
            tenant_id=tenant_id,
            task_id=task_id,
            max_tokens=draft.tokens,
            max_cost_usd=None if draft.cost_usd is None else round(Decimal(draft.cost_usd), 6),
            created_at=at,
        )
        for task_id, (draft, at) in made.items()
        if draft is not None
    ]
    if rows:
        Budget.objects.bulk_create(rows)


def spend(*, spending: Mapping[Lease, SpendInput], knowing: Collection[Lease]) -> set[Lease]:
    """Note what these runs have used in all, and take it from the budgets of their tasks, which are locked.

    Answers the runs that spend more although they know that the budget is spent. Nothing is noted of them.

    :param knowing: the leases whose holders know that their budget is spent.
    """
    if not spending:
        return set()
    leases = {run_key(lease.task_id, lease.fencing_token): lease for lease in spending}
    given = {
        "runs": list(leases),
        "knowing": [lease in knowing for lease in spending],
        "tokens": [used.tokens for used in spending.values()],
        "costs": [used.cost_usd for used in spending.values()],
    }
    return {leases[run] for (run,) in fetch(sql.SPEND, given, hot=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """What is left for a task, and whether its budget is spent."""

    left: BudgetLeft
    is_spent: bool


def balances(task_ids: Collection[int]) -> dict[int, Balance]:
    """The balance of each of these tasks, whose rows are locked. A task whose budget is spent is marked.

    A marked task does not run again.
    """
    if not task_ids:
        return {}
    return {
        task_id: Balance(
            left=BudgetLeft(tokens=tokens, cost_usd=None if cost is None else float(cost)),
            is_spent=is_spent,
        )
        for task_id, tokens, cost, is_spent in fetch(sql.LEFT, {"tasks": list(task_ids)}, hot=True)
    }
