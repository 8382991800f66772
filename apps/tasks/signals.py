"""Hints, sent on commit. Losing one costs latency and nothing else."""

from django.dispatch import Signal

task_queued = Signal()
"""Work is ready: `tenant_id`, `queue` (its name), `task_type` (its name)."""

task_finished = Signal()
"""A task reached its terminal state: `tenant_id`, `task_id` (the number)."""
