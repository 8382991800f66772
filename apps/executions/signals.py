"""Hints, sent on commit. Losing one costs latency and nothing else."""

from django.dispatch import Signal

execution_can_go_on = Signal()
"""There is work that a worker process should take up now: `tenant_id`, `execution_id` (the number)."""

job_unwanted = Signal()
"""Nobody wants a worker's job any more, and it has not heard that yet: `tenant_id`, `begun_job_id` (the number)."""

execution_told = Signal()
"""Whoever follows a plan's execution is to look: `tenant_id`, `plan_id`."""


def execution_topic(tenant_id: int, plan_id: str) -> str:
    """The topic that is notified when the execution of a plan has news."""
    return f"execution:{tenant_id}:{plan_id}"
