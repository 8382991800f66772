"""Hints on commit. Losing one costs latency, never truth."""

from django.dispatch import Signal

# With `principal_id` and `tenant_id`: what this principal would read is another thing than before.
inbox_changed = Signal()


def inbox_topic(principal_id: int) -> str:
    """The topic that is notified when the inbox of a principal changes."""
    return f"inbox:{principal_id}"
