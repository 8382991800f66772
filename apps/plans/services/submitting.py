"""Keeping a plan that a person or a model has made, so that it can be carried out like one of the planner's own."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from django.db import transaction

from apps.core.errors import FieldError, Invalid
from apps.plans import documents, selectors, validation
from apps.plans.catalogue import Catalogue
from apps.plans.documents import SUBMITTED, PlanStatus
from apps.plans.models import Plan
from apps.plans.services.delegates import delegate_asked, refuse_detours
from apps.plans.services.planning import keep, new_plan_id, told
from apps.plans.shapes import WORKER_STEPS
from apps.plans.validation import Problem
from apps.principals.tenancy import Caller

_ANEW = frozenset({"plan_hash", "next_step", "receipt_id", "receipt_uuid"})
"""What a plan says of itself that is another's once it is kept."""


@transaction.atomic
def submit(*, caller: Caller, document: Mapping[str, Any], caused_by: str | None, now: datetime) -> Plan:
    """Keep a plan of any author that the validator finds nothing wrong with, and post its `plan_created` receipt.

    It is kept as it was given. Added are an id, the time and the registry of the validation, the version of each tool, the
    estimates of cost and duration, and the hash. No step costs less than its worker asks.

    :raises Invalid: if anything is wrong with it, or it is none to be carried out (`plan_invalid`), if it has come through
        its DeleGate before (`delegation_loop`), or through too many (`delegation_too_deep`). Nothing is kept.
    """
    found = selectors.judgement(document, tenant_id=caller.tenant_id)
    problems = found.problems or list(_unfit(document, caller))
    if problems:
        raise Invalid(
            f"The plan is not kept. {problems[0].path or 'The whole of it'}: {problems[0].message}"[:500],
            code="plan_invalid",
            errors=[FieldError(f"/plan{one.path}", f"{one.code}: {one.message}") for one in problems],
        )
    delegate = delegate_asked(caller, document["delegate_id"], now)
    refuse_detours(delegate, document.get("delegation_path", ()))
    kept = {
        "schema_version": documents.SCHEMA_VERSION,
        **{name: value for name, value in document.items() if name not in _ANEW},
        "plan_id": new_plan_id(),
        "created_at": told(now),
        "status": str(PlanStatus.READY),
        "planner_version": SUBMITTED,
        "proposer": SUBMITTED,
        "registry_epoch": found.catalogue.epoch,
        "steps": [_pinned(step, found.catalogue) for step in document["steps"]],
    }
    kept |= validation.estimates(documents.read(kept), found.catalogue)
    kept["plan_hash"] = documents.plan_hash(kept)
    made = documents.read(kept)
    return keep(caller=caller, delegate=delegate, made=made, document=kept, caused_by=caused_by, now=now)


def _unfit(document: Mapping[str, Any], caller: Caller) -> Iterator[Problem]:
    """Why a valid plan is nevertheless none for this caller to carry out."""
    if document.get("status", PlanStatus.READY) != PlanStatus.READY:
        yield Problem("/status", "not_ready", "A plan that only says what is missing is not carried out.")
    if document["principal_ai"] != caller.name:
        yield Problem("/principal_ai", "another_principal", f"You are {caller.name}, and submit your own plans only.")
    own = selectors.delegate_of(caller.principal_id)
    if own is not None and own.delegate_id != document["delegate_id"]:
        yield Problem(
            "/delegate_id", "outside_pool", f"You are the DeleGate {own}: other pools are not yours to plan with."
        )
    for name in ("replaces", "revision", "excluded"):
        if name in document:
            yield Problem(f"/{name}", "replaces", "Only replan_plan makes a plan that takes another's place.")


def _pinned(step: Mapping[str, Any], catalogue: Catalogue) -> dict[str, Any]:
    """The step, with the version of the tool that it was judged by and what its worker asks for it."""
    found = catalogue.find(step["worker_id"], step["tool_name"]) if step["step_type"] in WORKER_STEPS else None
    if found is None:
        return dict(step)
    tool, offer = found
    cost = {"estimated_cost": offer.cost} if offer.cost > (step.get("estimated_cost") or 0) else {}
    return {**step, "tool_uid": tool.uid, **cost}
