"""What plans lose when a subject is forgotten, and with them what the planner learned."""

from typing import Final

from apps.core.erasure import Rows, belong, register
from apps.plans import services

_NOTHING: Final = """(
    select coalesce(jsonb_object_agg(key, value), '{}') from jsonb_each(document)
    where strpos(jsonb_build_array(key, value)::text, %(needle)s) = 0
) || '{"intent": "", "scope": "", "status": "needs_escalation", "steps": [], "assumptions": [], "references": {},
    "missing": [], "unsure": [], "questions": [], "partial_plan": null, "constraints": {}, "excluded": [], "delegation_path": []}'"""


register(
    Rows(
        table="plans_plan",
        redacted={"intent": "''", "status": "'needs_escalation'", "completed": "null", "document": _NOTHING},
        then=services.unlearn,
    ),
)
# The receipts of a plan and of its execution name it: those of the delegate in the dedupe key, `delegate:<event>:<plan>:v1`.
belong(
    "receipts_receipt",
    "case source_system when 'delegate' then split_part(dedupe_key, ':', 3) when 'executions' then metadata->>'plan_id' end"
    " in (select plan_id from plans_plan where tenant_id = %(tenant)s and intent = '')",
)
