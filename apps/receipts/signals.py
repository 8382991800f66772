"""Hints, sent on commit. Losing one costs latency and nothing else."""

from django.dispatch import Signal

letters_due = Signal()
"""Something waits to go to a target: `tenant_id`, `target_id`."""
