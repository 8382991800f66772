"""The product under faults: real processes, actors over HTTP, and a judge of what they were answered."""

EXECUTED = "chaos_executed"
"""A task type whose handler runs in Celery."""
