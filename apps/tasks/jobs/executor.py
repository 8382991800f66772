"""Executing tasks that have a handler here: lease, run, keep alive, report. All state is in the database."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from django.db import DatabaseError, connection

from apps.core.errors import Conflict, DomainError, RateLimited, Unavailable
from apps.core.ids import format_ref
from apps.principals.models import Principal
from apps.principals.services import ASYNCGATE
from apps.principals.tenancy import Caller, acting_in, on_behalf_of
from apps.tasks import handlers, registry, services
from apps.tasks.errors import AlreadyDecided, LeaseLost
from apps.tasks.handlers import Canceled, Failed, Result
from apps.tasks.services import Beat, Delivery, Failure, Grant
from apps.tasks.services.artifacts import NOTHING

logger = logging.getLogger(__name__)

# A message is worked on for at most this long, far under Celery's time limits, before another takes over.
_PATIENCE_SECONDS: Final = 120.0
_BEATS_PER_LEASE: Final = 3
_REPORT_TRIES: Final = 6

T = TypeVar("T")


def work(tenant_id: int, queue: str) -> bool:
    """Execute what a tenant's queue has; says whether it is dry."""
    with acting_in(tenant_id, "executing tasks"):
        gate = on_behalf_of(Principal.objects.named(ASYNCGATE).select_related("tenant").get(tenant_id=tenant_id))
    started = time.monotonic()
    while time.monotonic() - started < _PATIENCE_SECONDS:
        with gate.acting():
            grants = services.lease(worker=gate, queues=[queue], task_types=registry.names())
        if not grants:
            return True
        for grant in grants:
            _execute(gate, grant)
    return False


class _Run:
    """One run as its handler sees it; also the thread that keeps its lease alive meanwhile."""

    def __init__(self, gate: Caller, grant: Grant, requester: Caller) -> None:
        self.task_id = format_ref("task", grant.task_id)
        self.run_id = grant.fence
        self.caller = requester
        self.checkpoint = grant.checkpoint
        self._gate = gate
        self._grant = grant
        self._interval = grant.lease_ms / 1000 / _BEATS_PER_LEASE
        self._progress: tuple[float, str] | None = None
        self._stop_working = threading.Event()
        self._done = threading.Event()

    @property
    def cancelled(self) -> bool:
        return self._stop_working.is_set()

    @property
    def idempotency_key(self) -> str:
        return f"asyncgate:{self.task_id}"

    def progress(self, percent: float, message: str = "") -> None:
        self._progress = (percent, message[:500])

    def heartbeat(self, *, progress: float | None = None, message: str | None = None, checkpoint: Any = None) -> None:
        if checkpoint is not None:
            self.checkpoint = checkpoint
        self._beat(progress, message, checkpoint)

    def artifact(self, content: bytes, media_type: str) -> str:
        return services.store_artifact(tenant_id=self._gate.tenant_id, content=content, media_type=media_type)

    @contextmanager
    def kept_alive(self) -> Iterator[None]:
        """Heartbeats go out from a thread with a connection of its own until the block ends."""
        thread = threading.Thread(target=self._keep_alive, name=f"heartbeat {self.task_id}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._done.set()
            thread.join()

    def _keep_alive(self) -> None:
        try:
            while not self._done.wait(self._interval):
                percent, message = self._progress or (None, None)
                try:
                    self._beat(percent, message, None)
                except DatabaseError:
                    # The next beat tries again; if the lease runs out first, the fence decides.
                    logger.warning("a heartbeat of %s did not get through", self.task_id, exc_info=True)
                    connection.close()
        finally:
            connection.close()

    def _beat(self, percent: float | None, message: str | None, checkpoint: Any) -> None:
        beat = Beat(
            task_id=self._grant.task_id,
            lease_token=self._grant.lease_token,
            percent=percent,
            message=message,
            checkpoint=checkpoint,
        )
        with self._gate.acting():
            (answer,) = services.heartbeat(worker=self._gate, beats=[beat])
        if answer.status == "lost" or answer.order == "cancel":
            self._stop_working.set()


def _execute(gate: Caller, grant: Grant) -> None:
    with gate.acting():
        requester = on_behalf_of(Principal.objects.select_related("tenant").get(pk=grant.requester_id))
    run = _Run(gate, grant, requester)
    with run.kept_alive():
        ended = _ended(run, gate, grant)
    try:
        _insist(lambda: _report(gate, grant, ended))
    except (LeaseLost, AlreadyDecided) as refusal:
        # Somebody else has the task, or it was canceled: the fence has kept this result out.
        logger.warning("the end of %s run %s was not taken: %s", run.task_id, grant.fence, refusal)


Ended = tuple[Delivery, str | None] | Failure | Canceled


def _ended(run: _Run, gate: Caller, grant: Grant) -> Ended:
    """How the handler ended; nothing that it raises gets any further."""
    try:
        result = handlers.handler_of(grant.task_type)(run, grant.params)
        return _delivery(gate, grant, result), result.summary
    except Canceled as stopped:
        return stopped
    except Failed as failed:
        return Failure(
            code=failed.code,
            message=failed.message,
            details=None if failed.details is None else dict(failed.details),
            retryable=failed.retryable,
            retry_after=None if failed.retry_after is None else failed.retry_after.total_seconds(),
        )
    except DomainError as refusal:
        return Failure(
            code=refusal.code,
            message=refusal.detail,
            retryable=isinstance(refusal, Conflict | RateLimited | Unavailable),
            retry_after=refusal.retry_after if isinstance(refusal, RateLimited) else None,
        )
    except Exception as exc:  # a handler's defect is its task's failure, told to whoever asked
        logger.exception("the handler of %s failed", grant.task_type)
        return Failure(code="handler_error", message=f"{type(exc).__name__} in {grant.task_type}.", retryable=True)


def _delivery(gate: Caller, grant: Grant, result: Result) -> Delivery:
    return services.prepare(
        tenant_id=gate.tenant_id,
        task_id=grant.task_id,
        result=NOTHING if result.content is None else result.content,
        pointer=result.pointer,
        channel=result.channel,
        checksum=result.checksum,
    )


def _report(gate: Caller, grant: Grant, ended: Ended) -> None:
    task_id, token = grant.task_id, grant.lease_token
    with gate.acting():
        match ended:
            case Canceled():
                services.release(worker=gate, task_id=task_id, lease_token=token)
            case Failure():
                services.fail(worker=gate, task_id=task_id, lease_token=token, failure=ended)
            case delivery, summary:
                services.complete(worker=gate, task_id=task_id, lease_token=token, delivery=delivery, summary=summary)


def _insist(report: Callable[[], T]) -> T:
    """Report through a database that is away for a moment. The same report twice is answered once."""
    for tried in range(_REPORT_TRIES):
        try:
            return report()
        except DatabaseError:
            connection.close()
            time.sleep(0.1 * 2**tried)
    return report()
