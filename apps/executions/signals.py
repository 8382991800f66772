"""Hints, sent on commit. Losing one costs latency and nothing else."""

from django.dispatch import Signal

execution_can_go_on = Signal()
"""There is work that a worker process should take up now: `tenant_id`, `execution_id` (the number)."""
