"""Messages after a commit: to a worker process that continues an execution, and to its followers. Both may be lost."""

from functools import partial
from typing import Final

from django.db import transaction

from apps.core.notifications import Publisher
from apps.executions.models import Execution

ADVANCE: Final = "executions.advance"
# The tick has sent another by then.
_publisher = Publisher(ADVANCE, expires=30)


def wake(tenant_id: int, execution_id: int) -> None:
    """Have a worker process continue an execution. If the broker is away, the next tick does it."""
    _publisher.publish(tenant_id, execution_id)


def wake_after_commit(execution: Execution) -> None:
    """As :func:`wake`, when the transaction has committed."""
    transaction.on_commit(partial(wake, execution.tenant_id, execution.pk), robust=True)


def execution_topic(tenant_id: int, plan_id: str) -> str:
    """The topic on which the followers of a plan's execution are notified."""
    return f"execution:{tenant_id}:{plan_id}"
