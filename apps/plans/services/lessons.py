"""Learning from plans that were carried out: outcomes are noted, and what was learned is forgotten or taken back."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from django.db import transaction

from apps.core.errors import Conflict
from apps.plans import selectors, sql
from apps.plans.history import Past
from apps.plans.models import LearnedModel, Outcome
from apps.plans.shapes import WORKER_STEPS

_FAILED: Final = 0.25
"""How much a plan counts of which only a part ran to its end."""
_BATCH: Final = 1_000


@transaction.atomic
def record_outcome(*, plan_id: str, completed: Collection[str], succeeded: bool, now: datetime) -> Outcome | None:
    """Note how a plan was carried out; the same plan again is noted once. Runs within its tenant.

    :param completed: the ids of the steps that ran to their end. A plan of which none did with a version of a tool
        that it names teaches nothing: None.
    :raises UnknownPlan: if there is no such plan.
    """
    plan = selectors.plan_row(plan_id)
    document = plan.document
    ran = [
        step
        for step in document["steps"]
        if step["step_type"] in WORKER_STEPS and step["step_id"] in completed and step.get("tool_uid")
    ]
    if not ran:
        return None
    found, _ = Outcome.objects.get_or_create(
        tenant_id=plan.tenant_id,
        plan=plan,
        defaults={
            "request": plan.intent,
            "tools": list(dict.fromkeys(step["tool_uid"] for step in ran)),
            "links": _links(ran, document["steps"]),
            "weight": 1.0 if succeeded else _FAILED,
            "recorded_at": now,
        },
    )
    return found


def _links(ran: Sequence[Mapping[str, Any]], steps: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Which tool's result went to which: what each step depends on, waits looked through."""
    uids = {step["step_id"]: step["tool_uid"] for step in ran}
    waited = {step["step_id"]: step.get("wait_for_step_ids", ()) for step in steps}
    return [
        [uids[source], step["tool_uid"]]
        for step in ran
        for above in step.get("depends_on", ())
        for source in (above, *waited.get(above, ()))
        if source in uids
    ]


@transaction.atomic
def take_over_history(*, tenant_id: int, plans: Sequence[Past], now: datetime) -> int:
    """Note plans that were carried out elsewhere, oldest first; answers how many."""
    made = Outcome.objects.bulk_create(
        (
            Outcome(
                tenant_id=tenant_id,
                request=plan.request,
                tools=list(plan.tools),
                links=[list(link) for link in sorted(plan.links)],
                weight=plan.weight,
                recorded_at=now,
            )
            for plan in plans
            if plan.tools
        ),
        batch_size=_BATCH,
    )
    return len(made)


@transaction.atomic
def unlearn(*, tenant_id: int, taught_at: datetime) -> int:
    """Empty every model that may have learned from what was noted at this moment; answers how many.

    The planner does without until it has learned anew, from what is left. Who is learning just now has learned in vain.
    """
    sql.wait_for_turn(tenant_id)
    return (
        LearnedModel.objects.of_tenant(tenant_id)
        .learned_since(taught_at)
        .update(body=b"", state=LearnedModel.State.REJECTED, learned_from=0, last_outcome=0)
    )


@transaction.atomic
def go_back(*, tenant_id: int, number: int) -> LearnedModel:
    """Take the model before this one, which is in use, into use again. Runs within its tenant.

    :raises Conflict: if that one is not in use, or none before it is kept (`no_earlier_model`).
    """
    sql.wait_for_turn(tenant_id)
    current = LearnedModel.objects.in_use().filter(number=number).first()
    earlier = (
        LearnedModel.objects.filter(state=LearnedModel.State.SUPERSEDED, number__lt=number).order_by("-number").first()
    )
    if current is None or earlier is None:
        raise Conflict(f"Model {number} is not in use, or none before it is kept.", code="no_earlier_model")
    LearnedModel.objects.filter(pk=current.pk).update(state=LearnedModel.State.REJECTED)
    LearnedModel.objects.filter(pk=earlier.pk).update(state=LearnedModel.State.IN_USE)
    earlier.refresh_from_db()
    return earlier
