"""Messages after a commit: to a worker process that continues an execution, and to its followers. Both may be lost."""

from functools import partial
from typing import Final

from celery import current_app
from django.db import transaction

from apps.core.notifications import Publisher
from apps.executions.models import Execution

ADVANCE: Final = "executions.advance"
# An older message is dropped unread: the tick has sent another.
_FRESH_SECONDS: Final = 30


def _publish(tenant_id: int, execution_id: int) -> None:
    current_app.send_task(ADVANCE, args=(tenant_id, execution_id), expires=_FRESH_SECONDS, retry=False)


_publisher = Publisher(_publish)


def wake(tenant_id: int, execution_id: int) -> None:
    """Have a worker process continue an execution. If the broker is away, the next tick does it."""
    _publisher.publish(tenant_id, execution_id)


def wake_after_commit(execution: Execution) -> None:
    """As :func:`wake`, when the transaction has committed."""
    transaction.on_commit(partial(wake, execution.tenant_id, execution.pk), robust=True)


def execution_topic(tenant_id: int, plan_id: str) -> str:
    """The topic on which the followers of a plan's execution are notified."""
    return f"execution:{tenant_id}:{plan_id}"
