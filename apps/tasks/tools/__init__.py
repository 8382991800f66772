"""AsyncGate's operations."""

from apps.tasks.tools import batches, dead_letters, limits, queues, results, schedules, timeline, verbs

__all__ = ["batches", "dead_letters", "limits", "queues", "results", "schedules", "timeline", "verbs"]
