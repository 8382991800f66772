"""Commands on plans: making one stores it and proves it by a receipt, or does neither."""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any, Final
from uuid import UUID

from django.db import transaction

from apps.core.metrics import once_committed
from apps.digests import services as digests
from apps.plans import documents, metrics, planner, selectors, shelf
from apps.plans.documents import PlanStatus
from apps.plans.errors import DelegationLoop, DelegationTooDeep, UnknownCurrency
from apps.plans.grounding import memory_refs
from apps.plans.models import MOST_DELEGATES, Delegate, Plan, PlanStep, WaitingPlan
from apps.plans.offers import Priority
from apps.plans.services.arranging import root_delegate
from apps.plans.suggestions import Suggested
from apps.plans.validation import Limits
from apps.principals.services import DELEGATE
from apps.principals.tenancy import Caller
from apps.receipts.services import ObligationDraft, Poster, ReceiptDraft

SOURCE: Final = "delegate"
EXPIRY: Final = timedelta(days=7)
"""A plan that has not been begun for so long is abandoned."""

_CURRENCY: Final = "USD"
_GROUNDING_KEYS: Final = frozenset({"memory_refs", "receipt_refs", "concept_names"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What a principal asks of a DeleGate."""

    intent: str
    context: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    currency: str = _CURRENCY
    excluded_workers: frozenset[str] = frozenset()
    priority: Priority = Priority.BALANCED
    caused_by: str | None = None
    delegate_id: str | None = None
    delegation_path: tuple[str, ...] = ()
    """The keys of the DeleGates that the wish has come through, the first asked first."""
    suggested: Suggested = planner.NOTHING_SUGGESTED


@dataclass(frozen=True, slots=True, kw_only=True)
class MadePlan:
    """A stored plan and its receipt."""

    plan_id: str
    document: Mapping[str, Any]
    readiness: selectors.Readiness
    receipt_id: str
    receipt_uuid: UUID


def prepare(*, caller: Caller) -> None:
    """Have the registry of the caller's tenant at hand, so that no plan of it is made while that is built. Not within a transaction."""
    shelf.prepare(tenant_id=caller.tenant_id, acting=caller.acting)


@transaction.atomic
def create_plan(*, caller: Caller, request: PlanRequest, now: datetime) -> MadePlan:
    """Plan an intent, keep the plan and post its `plan_created` receipt; a refusal is a plan as well.

    Without a cause, the request itself becomes the root of the chain as `task_received`.

    :raises UnknownDelegate: if the request names a DeleGate that is not here.
    :raises UnknownCurrency: if the budget is not in USD.
    :raises DelegationLoop: if the wish has come through this DeleGate before.
    :raises DelegationTooDeep: if it has come through too many.
    """
    return make(caller=caller, request=request, now=now)


@transaction.atomic
def sketch(*, caller: Caller, request: PlanRequest, now: datetime) -> Mapping[str, Any]:
    """The document that :func:`create_plan` would make just now; nothing is kept, and there is no receipt.

    :raises UnknownDelegate: if the request names a DeleGate that is not here.
    """
    return _plan(caller, delegate_asked(caller, request.delegate_id, now), request, now, None).document()


def make(
    *,
    caller: Caller,
    request: PlanRequest,
    now: datetime,
    revision: planner.Revision | None = None,
    old: Plan | None = None,
) -> MadePlan:
    """As :func:`create_plan`, within its transaction.

    :param revision: what the plan keeps of the one that it replaces.
    :param old: that one.
    """
    begun = monotonic()
    if request.currency != _CURRENCY:
        raise UnknownCurrency(f"Costs are known in {_CURRENCY} only, not in {request.currency[:10]!r}.")
    delegate = delegate_asked(caller, request.delegate_id, now)
    refuse_detours(delegate, request.delegation_path)
    made = _plan(caller, delegate, request, now, revision)
    document = made.document()
    document["plan_hash"] = documents.plan_hash(document)
    kept = keep(
        caller=caller, delegate=delegate, made=made, document=document, caused_by=request.caused_by, old=old, now=now
    )
    once_committed(metrics.GENERATION.observe, monotonic() - begun)
    return kept


def keep(
    *,
    caller: Caller,
    delegate: Delegate,
    made: documents.Plan,
    document: Mapping[str, Any],
    caused_by: str | None,
    old: Plan | None = None,
    now: datetime,
) -> MadePlan:
    """Store a plan and post its `plan_created` receipt, within the caller's transaction.

    :param document: the plan as it is told, with its hash.
    """
    receipt = digests.post(
        poster=Poster(tenant_id=caller.tenant_id, principal_id=delegate.principal_id, name=DELEGATE),
        draft=_plan_created(
            caller, delegate, made, caused_by or _post_root(caller, made.intent, made.plan_id, now), now
        ),
        now=now,
    )
    _store(caller=caller, delegate=delegate, made=made, document=document, receipt=receipt, old=old, now=now)
    return MadePlan(
        plan_id=made.plan_id,
        document=document,
        readiness=selectors.readiness(document),
        receipt_id=receipt.receipt_id,
        receipt_uuid=receipt.uuid,
    )


def new_plan_id() -> str:
    """An id that no plan has."""
    return f"plan-{secrets.token_hex(12)}"


def told(moment: datetime) -> str:
    """A moment as plans tell it."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def delegate_asked(caller: Caller, delegate_id: str | None, now: datetime) -> Delegate:
    """The DeleGate that is asked; the tenant's root is made when it is first needed."""
    if delegate_id is not None and delegate_id != DELEGATE:
        return selectors.delegate_named(delegate_id)
    return root_delegate(tenant_id=caller.tenant_id, now=now)


def refuse_detours(delegate: Delegate, path: Sequence[str]) -> None:
    """:raises DelegationLoop: if a wish has come through this DeleGate before.
    :raises DelegationTooDeep: if it has come through too many.
    """
    if str(delegate.key) in path:
        raise DelegationLoop(f"{delegate} has been asked for this before, and would plan for itself through others.")
    if len(path) >= MOST_DELEGATES:
        raise DelegationTooDeep(f"This has come through {len(path)} DeleGates; {MOST_DELEGATES} are the most.")


def _plan(
    caller: Caller,
    delegate: Delegate,
    request: PlanRequest,
    now: datetime,
    revision: planner.Revision | None,
) -> documents.Plan:
    memory_ids, strange = _memory_ids(request.context.get("memory_refs"))
    receipt_ids, unknown = _receipt_ids(request.context.get("receipt_refs"), caller.principal_id)
    asked = planner.Request(
        plan_id=new_plan_id(),
        delegate_id=delegate.delegate_id,
        principal_ai=caller.name,
        intent=request.intent,
        created_at=told(now),
        context={name: value for name, value in request.context.items() if name not in _GROUNDING_KEYS},
        scope=delegate.scope or None,
        excluded_workers=request.excluded_workers,
        limits=request.limits,
        priority=request.priority,
        memory_ids=memory_ids,
        receipt_ids=receipt_ids,
        concept_names=tuple(_texts(request.context.get("concept_names"))),
        constraints=_constraints(request),
        delegation_path=(*request.delegation_path, str(delegate.key)),
        revision=revision,
        suggested=request.suggested,
    )
    with shelf.held(tenant_id=caller.tenant_id, delegate=delegate) as held:
        made = planner.plan(asked, held.ranker, held.memo, held.pool)
    left_out = tuple(f"{text} is not known here and was left out." for text in (*strange, *unknown))
    return replace(
        made,
        planner_version=f"{made.planner_version}.{held.model}",
        history_epoch=held.history_epoch,
        assumptions=(*made.assumptions, *left_out)[:100],
    )


def _constraints(request: PlanRequest) -> dict[str, Any]:
    """The bounds that were given, as the plan tells them."""
    limits = request.limits
    given = {
        "max_total_cost": limits.max_total_cost,
        "max_cost_per_step": limits.max_cost_per_step,
        "timeout_seconds": limits.max_runtime_seconds,
        "exclude_workers": sorted(request.excluded_workers) or None,
        "prefer": None if request.priority == Priority.BALANCED else str(request.priority),
    }
    return {name: value for name, value in given.items() if value is not None}


def _memory_ids(given: object) -> tuple[tuple[int, ...], list[str]]:
    refs, strange = memory_refs(_items(given))
    known = selectors.known_memory(refs)
    return tuple(dict.fromkeys(ref.number for ref in refs if ref in known)), [
        *strange,
        *(ref.text for ref in refs if ref not in known),
    ]


def _receipt_ids(given: object, principal_id: int) -> tuple[tuple[str, ...], list[str]]:
    asked = list(dict.fromkeys(_texts(given)))
    known = selectors.known_receipt_ids(asked, principal_id)
    return tuple(one for one in asked if one in known), [one for one in asked if one not in known]


def _texts(given: object) -> Iterable[str]:
    return (one[:100] for one in _items(given) if isinstance(one, str))


def _items(given: object) -> list[object]:
    return given[:200] if isinstance(given, list) else []


def _post_root(caller: Caller, intent: str, plan_id: str, now: datetime) -> str:
    posted = digests.post(
        poster=Poster.of(caller),
        draft=ReceiptDraft(
            recipient_id=caller.principal_id,
            source_system=SOURCE,
            event_type="task_received",
            dedupe_key=f"delegate:task_received:{plan_id}:v1",
            summary=intent[:2000],
            surface="ledger",
        ),
        now=now,
    )
    return posted.receipt_id


def _plan_created(caller: Caller, delegate: Delegate, made: documents.Plan, cause: str, now: datetime) -> ReceiptDraft:
    """A plan that can be carried out is owed by whoever asked for it, until an execution of it ends; a refusal is not."""
    ready = made.status == PlanStatus.READY
    return ReceiptDraft(
        recipient_id=caller.principal_id,
        source_system=SOURCE,
        event_type="plan_created",
        dedupe_key=f"delegate:plan_created:{made.plan_id}:v1",
        receipt_id=f"R.{now.astimezone(UTC):%Y%m%dT%H%M%SZ}.delegate.{made.plan_id}",
        summary=f"Plan {'submitted' if made.is_submitted else 'created'} for: {made.intent[:100]}",
        artifact_pointer=made.plan_id,
        artifact_location="delegate_registry",
        requires_action=ready,
        suggested_next_step="Execute plan steps" if ready else "Decide what to do about what is missing",
        caused_by=cause,
        metadata={
            "plan_id": made.plan_id,
            "delegate_id": delegate.delegate_id,
            "scope": made.scope,
            "status": str(made.status),
            "confidence": made.confidence,
            "step_count": len(made.steps),
            "estimated_total_runtime_seconds": made.estimated_total_runtime_seconds,
            "can_run_parallel": made.can_run_parallel,
            **({"submitted": True} if made.is_submitted else {}),
            **({"replaces": made.replaces, "revision": made.revision} if made.replaces else {}),
        },
        surface="ledger",
        obligation=ObligationDraft(debtor_id=caller.principal_id, creditor_id=delegate.principal_id) if ready else None,
    )


def _store(
    *,
    caller: Caller,
    delegate: Delegate,
    made: documents.Plan,
    document: Mapping[str, Any],
    receipt: digests.Posted,
    old: Plan | None,
    now: datetime,
) -> None:
    plan = Plan.objects.create(
        tenant_id=caller.tenant_id,
        plan_id=made.plan_id,
        delegate=delegate,
        principal_id=caller.principal_id,
        intent=made.intent,
        status=made.status,
        scope=made.scope,
        confidence=made.confidence,
        document=document,
        plan_hash=document["plan_hash"],
        planner_version=made.planner_version,
        registry_epoch=made.registry_epoch,
        history_epoch=made.history_epoch,
        receipt_id=receipt.receipt_id,
        receipt_uuid=receipt.uuid,
        created_at=now,
        replaces=old,
    )
    if made.status == PlanStatus.READY:
        WaitingPlan.objects.create(tenant_id=caller.tenant_id, plan=plan, expires_at=now + EXPIRY)
    PlanStep.objects.bulk_create(
        PlanStep(
            tenant_id=caller.tenant_id,
            plan=plan,
            position=position,
            step_id=step.step_id,
            step_type=step.step_type,
            depends_on=list(step.depends_on),
            worker_id=step.worker_id or "",
            tool_name=step.tool_name or "",
            tool_uid=step.tool_uid or "",
            params=step.params,
            provenance=step.provenance,
            confidence=step.confidence,
            estimated_runtime_seconds=step.estimated_runtime_seconds,
        )
        for position, step in enumerate(made.steps, start=1)
    )
