"""Signals that are sent on commit. A lost one costs latency only."""

from django.dispatch import Signal

task_queued = Signal()
"""Work is ready: `tenant_id`, `queue` (its name), `task_type` (its name)."""

tasks_finished = Signal()
"""Tasks reached their terminal states in one transaction: `tenant_id`, `task_ids` (their numbers)."""

dependency_finished = Signal()
"""A task that others depend on reached its terminal state: `tenant_id`."""


def queue_topic(tenant_id: int, queue: str) -> str:
    """The topic that is notified when a queue has work."""
    return f"queue:{tenant_id}:{queue}"


def type_topic(tenant_id: int, task_type: str) -> str:
    """The topic that is notified when a type has work, in any queue."""
    return f"task_type:{tenant_id}:{task_type}"


def task_topic(tenant_id: int, task: str) -> str:
    """The topic that is notified when a task, by its reference, has progressed or ended."""
    return f"task:{tenant_id}:{task}"
