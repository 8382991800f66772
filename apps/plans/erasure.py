"""Where somebody's words can stand in plans."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from apps.core.erasure import FORGOTTEN, Rows, Wanted, register
from apps.plans import selectors, services

_NOTHING: Final = """document || '{"intent": "", "scope": "", "status": "needs_escalation", "steps": [], "assumptions": [],
    "references": {}, "missing": [], "candidates": [], "partial_plan": null, "constraints": {}, "excluded": [],
    "delegation_path": []}'"""

_OUTCOMES: Final = Rows(
    table="plans_outcome",
    columns=["request", "tools", "links"],
    redacted={"request": "''"},
    also="plan_id in (select id from plans_plan where tenant_id = %(tenant)s and intent = '')",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """What was learned from requests: their words. It stands before the requests, which say what was learned from."""

    name: str = "plans_learnedmodel"

    def count(self, wanted: Wanted) -> int:
        taught = self._taught_at(wanted)
        return 0 if taught is None else selectors.models_since(tenant_id=wanted.tenant_id, taught_at=taught)

    def erase(self, wanted: Wanted) -> int:
        taught = self._taught_at(wanted)
        return 0 if taught is None else services.unlearn(tenant_id=wanted.tenant_id, taught_at=taught)

    def _taught_at(self, wanted: Wanted) -> datetime | None:
        """When the first of the requests that are wanted was noted."""
        return selectors.first_noted(_OUTCOMES.erasable(wanted))


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Plans that nobody has begun and that say nothing any more: they wait no longer."""

    name: str = "plans_waitingplan"

    def count(self, _wanted: Wanted) -> int:
        return 0

    def erase(self, wanted: Wanted) -> int:
        return services.expire_forgotten(tenant_id=wanted.tenant_id)


register(
    Models(),
    Waiting(),
    _OUTCOMES,
    Rows(
        table="plans_plan",
        columns=["intent", "scope", "document"],
        redacted={"intent": "''", "scope": "''", "document": _NOTHING},
    ),
    Rows(
        table="plans_planstep",
        columns=["params", "provenance"],
        redacted={"params": f"'{FORGOTTEN}'", "provenance": "null"},
        also="plan_id in (select id from plans_plan where tenant_id = %(tenant)s and intent = '')",
    ),
    Rows(table="plans_delegate", columns=["delegate_id", "scope"], redacted={}),
)
