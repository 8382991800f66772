"""AsyncGate's operations."""

from apps.tasks.tools import queues, results, schedules, verbs

__all__ = ["queues", "results", "schedules", "verbs"]
