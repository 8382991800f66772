"""Learning from plans that were carried out: outcomes are noted, and what was learned is forgotten or taken back."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction

from apps.core.errors import Conflict
from apps.memory import services as memory
from apps.plans import selectors, shelf, sql
from apps.plans.catalogue import Catalogue
from apps.plans.history import History, Judged, Past, habits, judge
from apps.plans.history import learn as learned
from apps.plans.models import LearnedModel, Outcome
from apps.plans.shapes import WORKER_STEPS
from apps.principals.selectors import principal_named
from apps.principals.services import DELEGATE
from apps.principals.tenancy import acting_in, on_behalf_of
from apps.workers import selectors as registry

_FAILED: Final = 0.25
"""How much a plan counts of which only a part ran to its end."""
_BATCH: Final = 1_000
_KEPT: Final = 3
_JUDGED_FROM: Final = 50
_SLACK: Final = 0.005
_HALF_LIFE_DAYS: Final = 90
_CLOCKS: Final = timedelta(minutes=5)
"""Whoever learns and whoever notes may read different clocks."""
_HABITS: Final = "what past plans have in common"


@transaction.atomic
def record_outcome(*, plan_id: str, completed: Collection[str], succeeded: bool, now: datetime) -> Outcome | None:
    """Note how a plan was carried out; the same plan again is noted once. Runs within its tenant.

    :param completed: the ids of the steps that ran to their end. A plan of which none did with a version of a tool
        that it names teaches nothing: None.
    :raises UnknownPlan: if there is no such plan.
    """
    plan = selectors.plan(plan_id)
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


def learn(*, tenant_id: int, now: datetime) -> LearnedModel | None:
    """Learn anew from a tenant's outcomes, and use the model unless it judges worse than the one in use.

    Seconds of numbers, with no transaction open meanwhile. None: there is nothing to learn from, or something of it was
    forgotten on request meanwhile.
    """
    with acting_in(tenant_id, "what is to be learned from"):
        outcomes = selectors.outcomes_to_learn_from()
        with shelf.held(tenant_id=tenant_id) as held:
            catalogue, before = held.catalogue.of_workers(held.catalogue.worker_ids), held.history
        heirs = _heirs({uid for outcome in outcomes for uid in outcome.tools}, catalogue)
    plans = [_past(outcome, heirs, now) for outcome in outcomes]
    if not plans:
        return None
    library = shelf.library_of(catalogue)
    reached, f1_before = None, None
    if len(plans) >= _JUDGED_FROM:
        held_out = plans[-len(plans) // 10 :]
        reached = judge(held_out, learned(plans[: -len(held_out)], library.relevance), library.relevance)
        f1_before = judge(held_out, before, library.relevance).node_f1 if before else None
    model = learned(plans, library.relevance)
    with acting_in(tenant_id, "a model that was learned"):
        if _is_forgotten(tenant_id, outcomes):
            return None
        kept = _keep(tenant_id, model, outcomes, reached, f1_before, now)
    if kept.state == LearnedModel.State.IN_USE:
        _write_down_habits(tenant_id, plans, now)
    return kept


def _heirs(uids: Collection[str], catalogue: Catalogue) -> dict[str, str]:
    """The tool that stands in the place of each that is offered no more: the only one of its name now, if there is one."""
    by_name: dict[str, list[str]] = {}
    for tool in catalogue.tools:
        by_name.setdefault(tool.name, []).append(tool.uid)
    names = registry.tool_names([uid for uid in uids if uid not in catalogue.by_uid])
    return {uid: by_name[name][0] for uid, name in names.items() if len(by_name.get(name, ())) == 1}


def _past(outcome: Outcome, heirs: Mapping[str, str], now: datetime) -> Past:
    age = (now - outcome.recorded_at).total_seconds() / 86_400
    return Past(
        request=outcome.request,
        tools=tuple(dict.fromkeys(heirs.get(uid, uid) for uid in outcome.tools)),
        links=frozenset((heirs.get(source, source), heirs.get(target, target)) for source, target in outcome.links),
        weight=outcome.weight * 0.5 ** (max(age, 0.0) / _HALF_LIFE_DAYS),
    )


def _is_forgotten(tenant_id: int, outcomes: Sequence[Outcome]) -> bool:
    """Whether something was forgotten since it was read; what is forgotten from now on finds what is learned."""
    sql.wait_for_turn(tenant_id)
    return Outcome.objects.filter(pk__in=[one.pk for one in outcomes if one.request], request="").exists()


def _keep(  # noqa: PLR0917  # one row
    tenant_id: int,
    model: History,
    outcomes: Sequence[Outcome],
    reached: Judged | None,
    f1_before: float | None,
    now: datetime,
) -> LearnedModel:
    latest = LearnedModel.objects.order_by("-number").first()
    worse = reached is not None and f1_before is not None and reached.node_f1 < f1_before - _SLACK
    if not worse:
        LearnedModel.objects.filter(state=LearnedModel.State.IN_USE).update(state=LearnedModel.State.SUPERSEDED)
    kept = LearnedModel.objects.create(
        tenant_id=tenant_id,
        number=latest.number + 1 if latest else 1,
        state=LearnedModel.State.REJECTED if worse else LearnedModel.State.IN_USE,
        learned_from=len(outcomes),
        last_outcome=outcomes[-1].pk,
        node_f1=reached.node_f1 if reached else None,
        calibration_error=reached.calibration_error if reached else None,
        node_f1_before=f1_before,
        body=model.dumps(),
        learned_at=now,
    )
    spare = LearnedModel.objects.exclude(state=LearnedModel.State.IN_USE).order_by("-number")[_KEPT:]
    LearnedModel.objects.filter(pk__in=[one.pk for one in spare]).delete()
    return kept


def _write_down_habits(tenant_id: int, plans: Sequence[Past], now: datetime) -> None:
    """Put what past plans have in common into memory, as readable patterns; only what has changed is revised.

    Each in a transaction of its own: who forgets holds patterns before it takes its turn among the models.
    """
    with acting_in(tenant_id, _HABITS):
        names = registry.tool_names({uid for plan in plans for uid in plan.tools})
        author = on_behalf_of(principal_named(DELEGATE))
        written = selectors.written_habits()
    for habit in habits(plans, names):
        if written.get(habit.name) != habit.text:
            with acting_in(tenant_id, _HABITS):
                memory.update_pattern(
                    author=author,
                    category=selectors.HABITS,
                    pattern_name=habit.name,
                    pattern_text=habit.text,
                    confidence=habit.confidence,
                    now=now,
                )


@transaction.atomic
def unlearn(*, tenant_id: int, taught_at: datetime) -> int:
    """Empty every model that may have learned from what was noted at this moment; answers how many.

    The planner does without until it has learned anew, from what is left. Who is learning just now has learned in vain.
    """
    sql.wait_for_turn(tenant_id)
    learned = LearnedModel.objects.filter(tenant_id=tenant_id, learned_at__gte=taught_at - _CLOCKS).exclude(body=b"")
    return learned.update(body=b"", state=LearnedModel.State.REJECTED, learned_from=0, last_outcome=0)


@transaction.atomic
def go_back(*, tenant_id: int, number: int) -> LearnedModel:
    """Take the model before this one, which is in use, into use again. Runs within its tenant.

    :raises Conflict: if that one is not in use, or none before it is kept (`no_earlier_model`).
    """
    sql.wait_for_turn(tenant_id)
    current = LearnedModel.objects.filter(state=LearnedModel.State.IN_USE).filter(number=number).first()
    earlier = (
        LearnedModel.objects.filter(state=LearnedModel.State.SUPERSEDED, number__lt=number).order_by("-number").first()
    )
    if current is None or earlier is None:
        raise Conflict(f"Model {number} is not in use, or none before it is kept.", code="no_earlier_model")
    LearnedModel.objects.filter(pk=current.pk).update(state=LearnedModel.State.REJECTED)
    LearnedModel.objects.filter(pk=earlier.pk).update(state=LearnedModel.State.IN_USE)
    earlier.refresh_from_db()
    return earlier
