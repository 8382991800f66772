"""Hints on commit. Losing one costs latency, never truth."""

from django.dispatch import Signal

# With `principal_id` and `tenant_id`: what this principal would read is another thing than before.
inbox_changed = Signal()
