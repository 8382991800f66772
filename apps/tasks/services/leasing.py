"""Leases, and concurrency keys: of the tasks with one key, one at a time is ready or leased."""

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from time import monotonic
from typing import Any, Final

from django.db import transaction

from apps.core.errors import FieldError, Invalid
from apps.core.ids import format_ref
from apps.core.notifications import send_on_commit
from apps.core.sql import execute, fetch
from apps.principals.tenancy import Caller
from apps.tasks import lease_tokens, sql
from apps.tasks.shapes import LeasedTask
from apps.tasks.signals import task_queued

Key = tuple[int, str]
"""A tenant and its concurrency key."""


def hold_keys(keys: Collection[Key]) -> None:
    """Lock these keys until the transaction ends. Whoever changes which task of a key is ready holds the key."""
    if keys:
        execute(sql.HOLD_KEYS, _columns(keys), hot=True)


def busy_keys(keys: Collection[Key]) -> tuple[datetime, set[str]]:
    """After :func:`hold_keys`: the time, and those keys of the acting tenant that a ready or leased task has."""
    ((now, found),) = fetch(sql.BUSY_KEYS, {"keys": [key for _, key in keys]}, hot=True)
    return now, set(found)


def admit(keys: Collection[Key]) -> None:
    """Make the most urgent waiting task of each key ready, unless a task of the key is ready.

    Called by whatever frees a key or makes a task wait for its key alone, after tasks are locked and before
    inboxes are.
    """
    if not keys:
        return
    hold_keys(keys)
    for tenant_id, queue, task_type in fetch(sql.ADMIT, _columns(keys), hot=True):
        send_on_commit(task_queued, tenant_id=tenant_id, queue=queue, task_type=task_type)


def _columns(keys: Collection[Key]) -> dict[str, list[int] | list[str]]:
    return {"tenants": [tenant_id for tenant_id, _ in keys], "keys": [key for _, key in keys]}


def lease(
    *,
    worker: Caller,
    queues: Sequence[str] = (),
    task_types: Sequence[str] | None = None,
    capabilities: Sequence[str] = (),
    capacity: int = 1,
    lease_seconds: int | None = None,
    host: str = "",
    waits: bool = True,
) -> list[LeasedTask]:
    """Lease up to `capacity` of the most urgent tasks that this task worker can do, queue by queue in the order
    named.

    Two task workers never get the same task. Locked tasks are skipped. If no task is ready, expired
    leases and due tasks are reclaimed first. Limits of queues and types are never exceeded, and do not block
    other work. Claims at the same limit wait for each other.

    A lease lasts `lease_seconds`, or as long as its type says. The type's maximum, its `heartbeat_seconds` and
    the task's deadline shorten it. Each heartbeat renews it.

    :param host: where the task worker says it runs; operators see it beside the lease.
    :param waits: whether it may wait for rivals at limits and for those who hold concurrency keys. Who holds keys itself
        must not, and is given what is to be had without.
    :raises Invalid: if neither queues nor types are named.
    """
    if not queues and not task_types:
        raise Invalid("Name queues or task types.", errors=[FieldError("/queues", "is missing")])
    given = {
        "tenant": worker.tenant_id,
        "holder": worker.principal_id,
        "types": None if task_types is None else list(task_types),
        "capabilities": list(capabilities),
        "seconds": lease_seconds,
        "host": host,
    }
    # No savepoint: what is refused is refused above.
    with transaction.atomic(savepoint=False):
        rows = _claimed(list(dict.fromkeys(queues)), given, capacity, waits=waits)
    return [_grant(worker, row) for row in rows]


def _claimed(lines: list[str], given: Mapping[str, Any], capacity: int, *, waits: bool) -> list[tuple[Any, ...]]:
    kind = (given["tenant"], tuple(lines), tuple(given["types"] or ()), tuple(given["capabilities"]))
    floor = _floors.of(kind)
    rows, limited = _claim({**given, "queues": lines, "capacity": capacity, "floor": floor}, waits=waits)
    if not limited and not rows and floor != _BOTTOM:
        floor = _BOTTOM
        rows, _ = _claim({**given, "queues": lines, "capacity": capacity, "floor": floor}, waits=waits)
    if not limited:
        _floors.note(kind, rows, is_whole=floor == _BOTTOM)
    if not rows and waits and _reclaim(lines, given["types"]):
        rows, _ = _claim({**given, "queues": lines, "capacity": capacity, "floor": _BOTTOM}, waits=True)
    return rows


_moment: Final = monotonic
_BOTTOM: Final = "-infinity"
_KINDS: Final = 1_000


class _Floors:
    """Where this process's claims of each kind begin to look: at the oldest task that the last claim found.

    A task that returns to its queue may stand before that. So a claim that finds none looks at the whole
    queue. So do the first claim of each second, and the next one after this process has released something.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[datetime, float]] = {}

    def of(self, kind: tuple[Any, ...]) -> datetime | str:
        floor, until = self._known.get(kind, (_BOTTOM, 0.0))
        return floor if _moment() < until else _BOTTOM

    def note(self, kind: tuple[Any, ...], rows: Sequence[tuple[Any, ...]], *, is_whole: bool) -> None:
        if not rows:
            self._known.pop(kind, None)
            return
        if len(self._known) >= _KINDS:
            self._known.clear()
        until = _moment() + WHOLE_EVERY if is_whole else self._known.get(kind, (None, 0.0))[1]
        self._known[kind] = (min(row[-1] for row in rows), until)

    def forget(self) -> None:
        self._known.clear()


WHOLE_EVERY: Final = 1.0
"""Seconds after which a claim looks at a whole line again."""
_floors: Final = _Floors()


def look_at_all() -> None:
    """Let the next claims of this process look at whole queues, because a task has returned to one."""
    _floors.forget()


def granted(*, worker: Caller, kept: Sequence[Sequence[int]]) -> list[LeasedTask]:
    """Those of the leases granted to this task worker before that still stand, by task and fencing token.

    Each has the time that is left.
    """
    if not kept:
        return []
    tasks, numbers = (list(column) for column in zip(*kept, strict=True))
    rows = fetch(sql.GRANTED, {"tasks": tasks, "fencing_tokens": numbers}, hot=True)
    return [_grant(worker, (*row, None)) for row in rows]


def _claim(given: Mapping[str, Any], *, waits: bool) -> tuple[list[tuple[Any, ...]], bool]:
    """The granted leases, and whether limits were checked; with limits there is no floor."""
    rows = fetch(sql.CLAIM[bool(given["queues"])], given, hot=True)
    if not rows or rows[0][0] is not None:
        return rows, False
    held = fetch(sql.HOLD_LIMITS if waits else sql.TRY_LIMITS, given, hot=True)
    if not waits and held == [(False,)]:
        return [], True
    return fetch(sql.CLAIM_WITHIN_LIMITS, given, hot=True), True


def _reclaim(queues: list[str], task_types: list[str] | None) -> bool:
    """Reclaim expired leases and ready due tasks in these queues, or those of the types; says whether there were any."""
    ((freed, readied, tenants, keys, _),) = fetch(sql.RECLAIM, {"queues": queues, "types": task_types}, hot=True)
    admit(list(zip(tenants, keys, strict=True)))
    return bool(freed or readied)


def _grant(worker: Caller, row: tuple[Any, ...]) -> LeasedTask:
    task_id, fencing_token, task_type, params, lease_ms, checkpoint, _ = row
    return LeasedTask(
        task_id=format_ref("task", task_id),
        run_id=fencing_token,
        lease_token=lease_tokens.sign(
            tenant_id=worker.tenant_id, holder_id=worker.principal_id, task_id=task_id, fencing_token=fencing_token
        ),
        task_type=task_type,
        params=json.loads(params),
        checkpoint=None if checkpoint is None else json.loads(checkpoint),
        lease_ms=lease_ms,
    )


def reason_lost(
    asked: int, *, fencing_token: int | None, holder: int | None, barred: bool, ended: str | None
) -> str | None:
    """How the run `asked` for was lost, from the current rows; None if it is not lost."""
    if ended is not None:
        return "canceled" if ended == "canceled" else "completed"
    if fencing_token is None or fencing_token > asked:
        return "superseded"
    if holder is None:
        return "requeued"
    return "expired" if barred else None
