"""What bootstrap tells a poster about receipts: the form that the doors accept."""

from typing import Final

SCHEMA_VERSION: Final = "1.0"
EVENT_TYPES: Final = (
    "task_received",
    "plan_created",
    "plan_complete",
    "plan_failed",
    "plan_canceled",
    "plan_abandoned",
    "task_queued",
    "task_complete",
    "task_failed",
    "task_canceled",
    "escalation",
    "learning",
    "caution",
    "context",
    "thread",
)
REQUIRED_FIELDS: Final = ("recipient_ai", "source_system", "event_type", "dedupe_key", "summary")
DEDUPE_KEY_FORMAT: Final = "<source_system>:<event_type>:<entity_id>:<version>"
