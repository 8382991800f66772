"""Tasks that wait for others: ready when all have succeeded, ended when one has not.

The dependencies are written when the task is queued. A message on commit releases dependants quickly, a tick
finds those whose message was lost.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

from django.db import DatabaseError

from apps.core.errors import NotFound
from apps.core.ids import format_ref
from apps.core.notifications import send_on_commit
from apps.core.sql import execute, fetch
from apps.principals.tenancy import Caller, acting_as_system, acting_in
from apps.tasks import sql
from apps.tasks.models import Dependency, FinishedTask, Task
from apps.tasks.services import recording
from apps.tasks.services.leasing import admit
from apps.tasks.services.recording import End
from apps.tasks.signals import task_queued
from apps.tasks.states import IfDependencyFails, Outcome, Reason, Status

logger = logging.getLogger(__name__)

# So many dependants are released, or ended, in one transaction; a chain of ends takes one for each of its links.
DEPENDANTS_BATCH: Final = 100
_WHY: Final = "releasing dependants"
# How long an end waits for its recipient's inbox: the next sweep comes soon.
_PATIENCE: Final = "500ms"


def open_among(*, requester: Caller, task_ids: Collection[int]) -> dict[int, bool]:
    """Which of these tasks have not succeeded yet; tasks that the requester may not see are left out.

    A task that ends before the caller commits is found by the tick.
    """
    if not task_ids:
        return {}
    parties = Task.objects.filter(pk__in=task_ids).values_list("pk", "requester_id", "recipient_id")
    visible = {pk for pk, *own in parties if requester.principal_id in own}
    done = FinishedTask.objects.filter(task_id__in=visible, status=Status.SUCCEEDED)
    succeeded = set(done.values_list("task_id", flat=True))
    return {pk: pk not in succeeded for pk in visible}


def to_wait_for(task_ids: Sequence[int], known: Mapping[int, bool]) -> tuple[int, ...]:
    """The tasks that a new task has to wait for. It can name only existing tasks, so there are no cycles.

    :raises NotFound: `unknown_task` if there is no such task, or its requester may not see it.
    """
    for task_id in task_ids:
        if task_id not in known:
            raise NotFound(f"There is no task {format_ref('task', task_id)}.", code="unknown_task")
    return tuple(sorted({task_id for task_id in task_ids if known[task_id]}))


def keep(tenant_id: int, waiting: Mapping[int, tuple[Sequence[int], IfDependencyFails]]) -> None:
    """Note the dependencies of tasks that are being queued, and what happens if one fails."""
    rows = [
        Dependency(tenant_id=tenant_id, task_id=task_id, on_task_id=on_task_id, if_it_fails=policy)
        for task_id, (on_task_ids, policy) in waiting.items()
        for on_task_id in on_task_ids
    ]
    if rows:
        Dependency.objects.bulk_create(rows)


def release_dependants() -> int:
    """Release or end the dependants of tasks that have ended, in all tenants; says how many.

    Opens its own transactions. Safe to repeat and to overlap. A locked task is left to the next tick.
    """
    with acting_as_system("looking for dependants"):
        tenants = [tenant_id for (tenant_id,) in fetch(sql.WAITED_ENOUGH, {"limit": DEPENDANTS_BATCH}, hot=True)]
    return sum(release_dependants_in(tenant_id=tenant_id) for tenant_id in tenants)


def release_dependants_in(*, tenant_id: int) -> int:
    """As :func:`release_dependants`, in one tenant."""
    with acting_in(tenant_id, _WHY):
        lost = [task_id for task_id, *_ in fetch(sql.LOST, {"task": None, "limit": DEPENDANTS_BATCH}, hot=True)]
    ended = _tried(partial(_end, tenant_id, None), tenant_id)
    if lost and ended is None:
        # One that can't be ended just now, or its recipient's busy inbox, keeps none of the others back.
        ended = sum(_tried(partial(_end, tenant_id, task_id), tenant_id) or 0 for task_id in lost)
    return (ended or 0) + (_tried(partial(_release, tenant_id), tenant_id) or 0)


def _tried(settle: Callable[[], int], tenant_id: int) -> int | None:
    """Run this in its own transaction with a short lock timeout; None if it failed."""
    try:
        with acting_in(tenant_id, _WHY):
            execute("select set_config('lock_timeout', %s, true)", [_PATIENCE])
            return settle()
    except DatabaseError as exc:
        logger.warning("dependants in tenant %s are left to the next sweep: %s", tenant_id, exc)
        return None


def _release(tenant_id: int) -> int:
    """Remove succeeded dependencies from the tasks that wait for them."""
    released = fetch(sql.RELEASE, {"limit": DEPENDANTS_BATCH}, hot=True)
    admit([(tenant_id, key) for *_, key, waits_for_key in released if waits_for_key])
    for queue, task_type in sorted({(queue, task_type) for queue, task_type, is_ready, *_ in released if is_ready}):
        send_on_commit(task_queued, tenant_id=tenant_id, queue=queue, task_type=task_type)
    return len(released)


def _end(tenant_id: int, only_task_id: int | None) -> int:
    """End the tasks whose dependency has failed or was canceled, or one of them."""
    lost = {
        task_id: rest for task_id, *rest in fetch(sql.LOST, {"task": only_task_id, "limit": DEPENDANTS_BATCH}, hot=True)
    }
    ended = recording.record(tenant_id, [_loss(task_id, *rest) for task_id, rest in lost.items()])
    Dependency.objects.filter(task_id__in=[one.task_id for one in ended]).delete()
    return len(ended)


def _loss(task_id: int, on_task_id: int, on_status: str, if_it_fails: str) -> End:
    canceled = if_it_fails == IfDependencyFails.CANCEL
    message = f"{format_ref('task', on_task_id)}, which it depends on, has {_ENDS[Status(on_status)]}."
    error: dict[str, Any] = {"code": "dependency_failed", "message": message}
    return End(
        task_id=task_id,
        status=Status.CANCELED if canceled else Status.FAILED,
        outcome=Outcome.CANCELED if canceled else Outcome.FAILED,
        reason=Reason.DEPENDENCY_FAILED,
        error={**error, "details": {"task_id": format_ref("task", on_task_id)}},
        summary=message,
    )


_ENDS: Final = {Status.FAILED: "failed", Status.CANCELED: "been canceled"}
