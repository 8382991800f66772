"""A task type whose handler runs in Celery."""

EXECUTED = "chaos_executed"
