"""Where somebody's words can stand in handoffs: what an item says stands in its receipt; here are names."""

from apps.core.erasure import Rows, register

register(
    Rows(table="handoff_handoff", columns=["receipt_id", "project", "from_session", "inherited_by"], redacted={}),
)
