"""Learning from plans that were carried out."""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Final

from django.db import transaction

from apps.plans import selectors, shelf, sql
from apps.plans.assembling import draft_of
from apps.plans.catalogue import Catalogue
from apps.plans.history import MOST, Past
from apps.plans.history import learn as learned
from apps.plans.models import LearnedModel, Outcome
from apps.principals.tenancy import acting_in
from apps.workers import selectors as registry

_FAILED: Final = 0.25
"""How much a plan counts of which only a part ran to its end."""
_HALF_LIFE_DAYS: Final = 90


@transaction.atomic
def record_outcome(*, plan_id: str, completed: Collection[str], succeeded: bool, now: datetime) -> Outcome | None:
    """Note how a plan was carried out; the same plan again is noted once. Runs within its tenant.

    :param completed: the ids of the steps that ran to their end. A plan of which none did with a version of a tool
        that it names teaches nothing: None.
    :raises UnknownPlan: if there is no such plan.
    """
    plan = selectors.plan(plan_id)
    ran = {
        call["step_id"]: call
        for call in draft_of(plan.document).calls
        if call["step_id"] in completed and call.get("tool_uid")
    }
    if not ran:
        return None
    found, _ = Outcome.objects.get_or_create(
        tenant_id=plan.tenant_id,
        plan=plan,
        defaults={
            "request": plan.intent,
            "tools": list(dict.fromkeys(call["tool_uid"] for call in ran.values())),
            "links": [
                [ran[above]["tool_uid"], call["tool_uid"]]
                for call in ran.values()
                for above in call["depends_on"]
                if above in ran
            ],
            "weight": 1.0 if succeeded else _FAILED,
            "recorded_at": now,
        },
    )
    return found


def learn(*, tenant_id: int, now: datetime) -> LearnedModel | None:
    """Learn anew from a tenant's outcomes.

    Seconds of numbers, with no transaction open meanwhile. None: there is nothing to learn from, or something of it was
    forgotten on request meanwhile.
    """
    with acting_in(tenant_id, "what is to be learned from"):
        outcomes = list(reversed(Outcome.objects.order_by("-id")[:MOST]))
        with shelf.held(tenant_id=tenant_id) as held:
            catalogue = held.catalogue.of_workers(held.catalogue.worker_ids)
        heirs = _heirs({uid for outcome in outcomes for uid in outcome.tools}, catalogue)
    if not outcomes:
        return None
    model = learned([_past(one, heirs, now) for one in outcomes], shelf.library_of(catalogue).relevance)
    with acting_in(tenant_id, "what was learned"):
        sql.wait_for_turn(tenant_id)
        if Outcome.objects.filter(pk__in=[one.pk for one in outcomes if one.request], request="").exists():
            return None
        # Processes tell by the number of the row what they hold, so it is a new one each time.
        LearnedModel.objects.all().delete()
        return LearnedModel.objects.create(
            tenant_id=tenant_id,
            learned_from=len(outcomes),
            last_outcome=outcomes[-1].pk,
            body=model.dumps(),
            learned_at=now,
        )


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


@transaction.atomic
def unlearn(*, tenant_id: int) -> None:
    """Forget what was learned: the planner does without until it has learned anew, from what is left."""
    sql.wait_for_turn(tenant_id)
    LearnedModel.objects.filter(tenant_id=tenant_id).delete()
