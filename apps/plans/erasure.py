"""Where somebody's words can stand in plans."""

from typing import Final

from apps.core.erasure import FORGOTTEN, Rows, register

_NOTHING: Final = """document || '{"intent": "", "status": "needs_escalation", "steps": [], "assumptions": [],
    "references": {}, "missing": [], "candidates": [], "partial_plan": null}'"""

register(
    Rows(table="plans_plan", columns=["intent", "document"], redacted={"intent": "''", "document": _NOTHING}),
    Rows(
        table="plans_planstep",
        columns=["params", "provenance"],
        redacted={"params": f"'{FORGOTTEN}'", "provenance": "null"},
        also="plan_id in (select id from plans_plan where tenant_id = %(tenant)s and intent = '')",
    ),
    Rows(
        table="plans_outcome",
        columns=["request", "tools", "links"],
        redacted={"request": "''"},
        also="plan_id in (select id from plans_plan where tenant_id = %(tenant)s and intent = '')",
    ),
    Rows(table="plans_delegate", columns=["delegate_id", "scope"], redacted={}),
)
