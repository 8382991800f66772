"""The signal that an inbox has changed. Losing one costs latency only."""

from django.dispatch import Signal

# Sent on commit with `principal_id` and `tenant_id`.
inbox_changed = Signal()


def inbox_topic(principal_id: int) -> str:
    """The topic that is notified when the inbox of a principal changes."""
    return f"inbox:{principal_id}"
