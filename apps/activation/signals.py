"""Hints within the app. Losing one costs latency, never a wake."""

from django.dispatch import Signal

# With `tenant_id` and `target_id`: there seems to be something to wake this target for.
target_due = Signal()
