"""What operators are told without looking.

An alert is a receipt to the tenant's principal `operators`. So its webhooks wake whoever reads its inbox, and its
inbox policy makes one digest of a burst. A tenant without such a principal is told nothing.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from apps.core.admin import span
from apps.delivery.models import Target
from apps.digests import services as digests
from apps.principals.models import Principal
from apps.principals.services import ASYNCGATE, OPERATORS
from apps.principals.tenancy import acting_as_system, acting_in
from apps.receipts.services import Group, Poster, ReceiptDraft
from apps.tasks import selectors as tasks
from apps.tasks.models import FinishedTask, Task
from apps.tasks.states import Status
from apps.workers.models import State, Worker

_GROUP: Final = Group(resource_ref="alerts", event_family="alert")
_HOUR: Final = timedelta(hours=1)
_WAITED_LONG: Final = timedelta(minutes=5)
_MOST: Final = 1_000


def raise_alerts(*, now: datetime) -> None:
    """Post what is wrong now. What lasts is told once an hour, a silent MCP worker once.

    :raises ExceptionGroup: if it failed for some tenants; the others' operators are told.
    """
    with acting_as_system("alerts"):
        told = list(Principal.objects.filter(name=OPERATORS, disabled_at=None))
        gates = dict(Principal.objects.filter(name=ASYNCGATE).values_list("tenant_id", "pk"))
    failures: list[Exception] = []
    for operators in told:
        try:
            _tell(operators, gates[operators.tenant_id], now)
        except Exception as failure:  # noqa: BLE001  # raised below; the others' alerts are not its
            failures.append(failure)
    if failures:
        raise ExceptionGroup("Some tenants' operators were told nothing", failures)


def _tell(operators: Principal, gate_id: int, now: datetime) -> None:
    tenant_id = operators.tenant_id
    with acting_in(tenant_id, "alerts"):
        drafts = [
            ReceiptDraft(
                recipient_id=operators.pk,
                source_system="gatehouse",
                event_type=event_type,
                dedupe_key=f"alert:{event_type}:{key}",
                title=title[:200],
                summary=title,
                group=_GROUP,
            )
            for event_type, key, title in _found(tenant_id, now)
        ]
        gate = Poster(tenant_id=tenant_id, principal_id=gate_id, name=ASYNCGATE)
        # What was told before is refused by its key.
        digests.post_many(poster=gate, drafts=drafts, now=now)


def _found(tenant_id: int, now: datetime) -> Iterator[tuple[str, str, str]]:
    """Of each alert the type of its event, what makes it the same one, and what it says."""
    hour = f"{now:%Y-%m-%dT%H}"
    for queue, (count, last) in sorted(_dead_letters(tenant_id, now).items()):
        yield "dead_letters", f"{queue}:{last:%Y-%m-%dT%H}", f"Queue {queue}: {count} failed for good in the last hour."
    for health in tasks.queue_health(tenant_id=tenant_id).values():
        if health.queued and not health.paused and health.oldest_wait_seconds > _WAITED_LONG.total_seconds():
            waits = f"{health.queued} waiting, the oldest for {span(health.oldest_wait_seconds)}."
            yield "queue_waits", f"{health.queue}:{hour}", f"Queue {health.queue}: {waits}"
    for worker in Worker.objects.filter(tenant_id=tenant_id, state=State.OFFLINE, unregistered_at=None)[:_MOST]:
        since = f"{worker.last_heartbeat_at:%Y-%m-%d %H:%M:%S}"
        yield (
            "worker_silent",
            f"{worker.worker_id}:{since}",
            f"MCP worker {worker.worker_id}: silent since {since} UTC.",
        )
    for target in Target.objects.filter(tenant_id=tenant_id, retry_at__isnull=False, stopped_at=None)[:_MOST]:
        failing = f"{target.failures_in_a_row} calls failed in a row: {target.result}"
        yield "target_fails", f"{target.ref}:{hour}", f"Target {target}: {failing}"


def _dead_letters(tenant_id: int, now: datetime) -> dict[str, tuple[int, datetime]]:
    """By queue, how many tasks failed in the last hour, and when the last one did."""
    failed = FinishedTask.objects.filter(tenant_id=tenant_id, status=Status.FAILED, finished_at__gt=now - _HOUR)
    ended = dict(failed.order_by("-finished_at").values_list("task_id", "finished_at")[:_MOST])
    found: dict[str, tuple[int, datetime]] = {}
    for task_id, queue in Task.objects.filter(pk__in=ended).values_list("pk", "queue__name"):
        count, last = found.get(queue, (0, ended[task_id]))
        found[queue] = (count + 1, max(last, ended[task_id]))
    return found
