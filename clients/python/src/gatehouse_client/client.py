"""The client: one method for each verb. Every call may be repeated, and is, until the hub has answered."""

import json
import logging
import os
import random
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self, Unpack
from urllib.parse import quote

import httpx2

from gatehouse_client.decoding import decode
from gatehouse_client.errors import GatehouseError, RateLimited, Refused, Unreachable
from gatehouse_client.inputs import (
    FailTask,
    HeldLease,
    LeaseFrom,
    LeaseTasks,
    PostReceipt,
    QueueTask,
    RegisterTaskType,
    ReleaseTask,
    ScheduleTask,
    SetQueueLimitsBody,
    TaskCompletion,
)
from gatehouse_client.outputs import (
    AckedOutput,
    CompletedTask,
    CompletedTasks,
    DeadLetters,
    HeartbeatAnswer,
    HeartbeatAnswers,
    InboxOutput,
    LeasedTask,
    QueuedOne,
    QueuedTask,
    QueuedTasks,
    QueueFigures,
    QueuePolicy,
    Queues,
    RunEnded,
    RunsEnded,
    ScheduleOutput,
    Schedules,
    TaskResult,
    TaskStatus,
    Timeline,
    UnsuccessfulRun,
)

logger = logging.getLogger("gatehouse_client")

_NO_ANSWER: Final = (httpx2.NetworkError, httpx2.TimeoutException, httpx2.ProxyError, httpx2.RemoteProtocolError)
_TOO_MANY: Final = 429
_AWAY: Final = frozenset({502, 503, 504})
_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 5.0
_LONGEST_POLL: Final = 50.0


@dataclass(frozen=True, kw_only=True)
class Posted:
    """A receipt that is stored, by this post or by one before."""

    receipt_id: str
    uuid: str
    entry: str | None = None
    """The entry that this post made visible, if any."""
    is_duplicate: bool = False


class Client:
    """The API of a hub for one principal. Threads may share a client.

    A call that meets a broken connection, 429, 502, 503 or 504 is sent again, unchanged, until `patience` seconds are
    over; the first failure is logged. Nothing happens twice: the hub recognises a repeated request by its key or its
    lease and repeats its answer. Any other refusal is raised at once.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        patience: float = 60.0,
        timeout: float = 15.0,
        http: httpx2.Client | None = None,
    ) -> None:
        """
        :param timeout: seconds to wait for one answer, beside `wait_seconds` of a call.
        :param http: your own HTTP client, for proxies or certificates.
        """
        self._url = url.rstrip("/")
        self._token = token
        self._patience = patience
        self._timeout = timeout
        self._http = http or httpx2.Client()

    @classmethod
    def from_environment(cls) -> Self:
        """Configured by GATEHOUSE_URL and GATEHOUSE_TOKEN.

        :raises GatehouseError: naming the variables that are not set.
        """
        names = ("GATEHOUSE_URL", "GATEHOUSE_TOKEN")
        if missing := [name for name in names if not os.environ.get(name)]:
            raise GatehouseError(f"Set {' and '.join(missing)} in the environment: the hub's address and your token.")
        return cls(*(os.environ[name] for name in names))

    def within(self, *, patience: float, timeout: float | None = None) -> "Client":
        """The same client with other limits of time."""
        timeout = self._timeout if timeout is None else timeout
        return Client(self._url, self._token, patience=patience, timeout=timeout, http=self._http)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # Requesting work

    def register_type(self, **task_type: Unpack[RegisterTaskType]) -> None:
        """Register or change a task type."""
        self._ask("POST", _path("task-types"), task_type)

    def queue(self, **task: Unpack[QueueTask]) -> QueuedTask:
        """Queue a task. Your own `idempotency_key` makes two calls one, also across restarts."""
        return decode(QueuedTask, self._ask("POST", _path("tasks"), _with_key(task)))

    def queue_many(self, tasks: Sequence[QueueTask]) -> list[QueuedOne]:
        """Queue up to 1,000 tasks; returns an answer for each, in their order. A refused one has a `code`."""
        body = {"tasks": [_with_key(task) for task in tasks]}
        return decode(QueuedTasks, self._ask("POST", _path("tasks", "batch"), body)).results

    def status(self, task_id: str) -> TaskStatus:
        return decode(TaskStatus, self._ask("GET", _path("tasks", task_id)))

    def result(self, task_id: str) -> TaskResult:
        """:raises NotFinished: if there is none yet. No need to poll: the end is told to the inbox."""
        return decode(TaskResult, self._ask("GET", _path("tasks", task_id, "result")))

    def cancel(self, task_id: str) -> str:
        """`canceled`; or `canceling`, if a worker holds the task and may still finish it."""
        return str(self._ask("POST", _path("tasks", task_id, "cancel"), {})["status"])

    def control(self, task_id: str, order: Literal["checkpoint", "drain"]) -> None:
        """Send an order with the task's next heartbeat: save a checkpoint, or save one and release the task.

        :raises Refused: `not_leased` if the task is not leased.
        """
        self._ask("POST", _path("tasks", task_id, "control"), {"order": order})

    def timeline(self, task_id: str, *, limit: int = 20, cursor: str | None = None) -> Timeline:
        """The events of a task, in order.

        :param limit: runs per page; each has several events.
        :param cursor: `next` of the page before.
        """
        return decode(Timeline, self._ask("GET", _path("tasks", task_id, "timeline"), query=_page(limit, cursor)))

    def dead_letters(self, *, limit: int = 50, cursor: str | None = None) -> DeadLetters:
        """The failed tasks that you queued or receive, newest first.

        :param cursor: `next` of the page before.
        """
        return decode(DeadLetters, self._ask("GET", _path("dead-letters"), query=_page(limit, cursor)))

    def retry(self, task_id: str) -> QueuedTask:
        """Queue a dead letter again, as a new task; a repeated call returns the same task.

        :raises Refused: `not_a_dead_letter` if the task has not failed for good.
        """
        return decode(QueuedTask, self._ask("POST", _path("tasks", task_id, "retry"), {}))

    def schedule(self, **schedule: Unpack[ScheduleTask]) -> ScheduleOutput:
        """Queue a task periodically. The same name again changes the schedule."""
        return decode(ScheduleOutput, self._ask("POST", _path("schedules"), schedule))

    def schedules(self, *, limit: int = 50, cursor: str | None = None) -> Schedules:
        """:param cursor: `next` of the page before."""
        return decode(Schedules, self._ask("GET", _path("schedules"), query=_page(limit, cursor)))

    def remove_schedule(self, name: str) -> bool:
        """Remove a schedule. False if there is none of this name, also after a lost answer."""
        try:
            self._ask("DELETE", _path("schedules", name))
        except Refused as refusal:
            if refusal.code != "unknown_schedule":
                raise
            return False
        return True

    # Limits

    def queues(self) -> list[QueueFigures]:
        """Figures of each queue: waiting tasks, ages, throughput, failures."""
        return decode(Queues, self._ask("GET", _path("queues"))).queues

    def set_queue_limits(self, queue: str, **limits: Unpack[SetQueueLimitsBody]) -> QueuePolicy:
        """Replace the limits of a queue; the limits of a type are part of `register_type`."""
        return decode(QueuePolicy, self._ask("PUT", _path("queues", queue), limits))

    def pause_queue(self, queue: str, *, drain: bool = False) -> QueuePolicy:
        """Lease no tasks of a queue until it is resumed.

        :param drain: whether holders of its tasks are ordered to release them.
        """
        return decode(QueuePolicy, self._ask("POST", _path("queues", queue, "pause"), {"drain": drain}))

    def resume_queue(self, queue: str) -> QueuePolicy:
        return decode(QueuePolicy, self._ask("POST", _path("queues", queue, "resume"), {}))

    def pause_type(self, task_type: str) -> None:
        """Lease no task of a type until it is resumed. Leased tasks go on."""
        self._ask("POST", _path("task-types", task_type, "pause"), {})

    def resume_type(self, task_type: str) -> None:
        self._ask("POST", _path("task-types", task_type, "resume"), {})

    # Working

    def lease(self, **wanted: Unpack[LeaseTasks]) -> list[LeasedTask]:
        """Take up to `capacity` tasks; none if there are none, and none come within `wait_seconds` (30 at most)."""
        # The leases of a lost answer are held by nobody, and expire.
        answer = self._ask("POST", _path("tasks", "lease"), wanted, wait=wanted.get("wait_seconds", 0.0))
        return [decode(LeasedTask, one) for one in answer.get("tasks", [])]

    def heartbeat(self, leases: Sequence[HeldLease]) -> list[HeartbeatAnswer]:
        """Renew leases and receive orders, one answer for each in their order. Checkpoints are saved when this returns."""
        answer = self._ask("POST", _path("tasks", "heartbeat"), {"leases": leases})
        return decode(HeartbeatAnswers, answer).results

    def complete(
        self,
        lease: LeasedTask,
        result: Any = None,
        *,
        summary: str | None = None,
        result_pointer: str | None = None,
        result_channel: str | None = None,
        checksum: str | None = None,
        lease_next: int = 0,
        lease_from: LeaseFrom | None = None,
    ) -> CompletedTask:
        """Complete a task, with its result or a pointer to it. The requester gets one receipt.

        :param lease_next: how many tasks to lease by the same request; they come as `next`.
        :raises LeaseLost: if the lease is over, or this run has ended otherwise.
        """
        body = {
            "lease_token": lease.lease_token,
            "summary": summary,
            "result_pointer": result_pointer,
            "result_channel": result_channel,
            "checksum": checksum,
            "lease_next": lease_next,
            "lease_from": lease_from,
        }
        if result is not None:
            body["result"] = result
        return decode(CompletedTask, self._ask("POST", _path("tasks", lease.task_id, "complete"), body))

    def complete_many(
        self, completions: Sequence[TaskCompletion], *, lease_next: int = 0, lease_from: LeaseFrom | None = None
    ) -> CompletedTasks:
        """Complete up to 500 tasks; `results` has an answer for each, in their order. A refused one has a `code`.

        :param lease_next: how many tasks to lease by the same request.
        """
        body = {"completions": completions, "lease_next": lease_next, "lease_from": lease_from}
        return decode(CompletedTasks, self._ask("POST", _path("tasks", "complete"), body))

    def fail(
        self,
        lease: LeasedTask,
        code: str,
        message: str,
        *,
        retryable: bool,
        retry_after: float | None = None,
        details: dict[str, Any] | None = None,
    ) -> UnsuccessfulRun:
        """Fail a run. Another run follows after a pause, or the task ends as a dead letter.

        :raises LeaseLost: if the lease is over, or this run has ended otherwise.
        """
        body = {
            "lease_token": lease.lease_token,
            "error": {"code": code, "message": message, "details": details},
            "retryable": retryable,
            "retry_after": retry_after,
        }
        return decode(UnsuccessfulRun, self._ask("POST", _path("tasks", lease.task_id, "fail"), body))

    def fail_many(self, failures: Sequence[FailTask]) -> list[RunEnded]:
        """Fail up to 500 runs; returns an answer for each, in their order. A refused one has a `code`."""
        return decode(RunsEnded, self._ask("POST", _path("tasks", "fail"), {"failures": failures})).results

    def release(self, lease: LeasedTask) -> UnsuccessfulRun:
        """Release a task. If it was to be canceled, this cancels it.

        :raises LeaseLost: if the lease is over, or this run has ended otherwise.
        """
        body = {"lease_token": lease.lease_token}
        return decode(UnsuccessfulRun, self._ask("POST", _path("tasks", lease.task_id, "release"), body))

    def release_many(self, leases: Sequence[LeasedTask]) -> list[RunEnded]:
        """Release up to 500 tasks; returns an answer for each, in their order. A refused one has a `code`."""
        releases: list[ReleaseTask] = [{"task_id": one.task_id, "lease_token": one.lease_token} for one in leases]
        return decode(RunsEnded, self._ask("POST", _path("tasks", "release"), {"releases": releases})).results

    # Receipts

    def post(self, **receipt: Unpack[PostReceipt]) -> Posted:
        """Post a receipt to one principal. The same receipt again changes nothing (`is_duplicate`).

        :raises Refused: `dedupe_conflict` if the key was used for another receipt.
        """
        try:
            return decode(Posted, self._ask("POST", _path("receipts"), receipt))
        except Refused as refusal:
            if refusal.code != "duplicate_receipt":
                raise
            known = refusal.document
            return Posted(receipt_id=known["existing_receipt_id"], uuid=known["existing_uuid"], is_duplicate=True)

    def read(
        self,
        *,
        after: int = 0,
        limit: int = 50,
        source_system: str | None = None,
        max_tokens: int | None = None,
        wait: float = 0.0,
    ) -> InboxOutput:
        """Your unread entries, oldest first; consumes nothing.

        :param after: only entries with a greater sequence.
        :param wait: if there are none, wait up to so many seconds (60).
        """
        query = {"after": after, "limit": limit, "source_system": source_system, "max_tokens": max_tokens, "wait": wait}
        answer = self._ask("GET", _path("inbox"), query={k: v for k, v in query.items() if v is not None}, wait=wait)
        return decode(InboxOutput, answer)

    def wait(self, seconds: float, *, after: int = 0, source_system: str | None = None) -> InboxOutput:
        """Read as soon as there is an entry, at the latest after so many seconds."""
        until = time.monotonic() + seconds
        while True:
            left = max(until - time.monotonic(), 0.0)
            inbox = self.read(after=after, source_system=source_system, wait=min(left, _LONGEST_POLL))
            if inbox.entries or left <= _LONGEST_POLL:
                return inbox

    def ack(self, token: str) -> AckedOutput:
        """Ack all entries up to one, as shown by the read that its `token` comes from."""
        return decode(AckedOutput, self._ask("POST", _path("inbox", "ack-through"), {"through": token}))

    def ack_entries(self, refs: Sequence[str]) -> AckedOutput:
        """Ack just these entries."""
        return decode(AckedOutput, self._ask("POST", _path("inbox", "ack"), {"entries": refs}))

    # Transport

    def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: dict[str, Any] | None = None,
        wait: float = 0.0,
    ) -> dict[str, Any]:
        content = None if body is None else json.dumps(body, allow_nan=False).encode()
        headers = {"Authorization": f"Bearer {self._token}"} | ({"Content-Type": "application/json"} if content else {})
        request = self._http.build_request(
            method, self._url + path, params=query, content=content, headers=headers, timeout=self._timeout + wait
        )
        until = time.monotonic() + self._patience
        pause = _FIRST_PAUSE
        is_first = True
        while True:
            try:
                return self._send(request)
            except (Unreachable, RateLimited) as exc:
                # Full jitter: clients that failed together do not retry together.
                sleep = max(exc.retry_after, random.uniform(0, pause))  # noqa: S311  # spreads load, hides nothing
                if time.monotonic() + sleep > until:
                    raise
                if is_first:
                    logger.warning("%s does not answer; trying again for %g s: %s", self._url, self._patience, exc)
                is_first = False
            time.sleep(sleep)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _send(self, request: httpx2.Request) -> dict[str, Any]:
        """:raises Unreachable, RateLimited: if it may be sent again."""
        try:
            response = self._http.send(request)
        except _NO_ANSWER as exc:
            raise Unreachable(f"{request.method} {request.url.path}: {type(exc).__name__} {exc}") from exc
        document = _document(response)
        if response.is_success:
            return document
        if response.status_code in _AWAY:
            shown = f"{request.method} {request.url.path}: {response.status_code} {document.get('detail')}"
            raise Unreachable(shown, retry_after=_retry_after(response))
        if response.status_code == _TOO_MANY:
            raise RateLimited(response.status_code, document, retry_after=_retry_after(response))
        raise Refused.of(response.status_code, document)


def _with_key(task: Mapping[str, Any]) -> dict[str, Any]:
    """With a key, so that it may be sent again."""
    return {"idempotency_key": str(uuid.uuid4()), **task}


def _path(*parts: str) -> str:
    return "/".join(("/api/v1", *(quote(part, safe="") for part in parts)))


def _page(limit: int, cursor: str | None) -> dict[str, Any]:
    return {"limit": limit} | ({"cursor": cursor} if cursor else {})


def _document(response: httpx2.Response) -> dict[str, Any]:
    """The JSON object of an answer, or a document that says that it is none (a proxy's page)."""
    if not response.content:
        return {}
    try:
        document = response.json()
    except ValueError:
        document = None
    if isinstance(document, dict):
        return document
    shown = {"code": "no_json", "detail": response.text[:200]}
    if response.is_success:
        raise Refused.of(response.status_code, shown)
    return shown


def _retry_after(response: httpx2.Response) -> float:
    """In seconds; the header's other form, a date, is ignored."""
    given = response.headers.get("Retry-After", "")
    return float(given) if given.isdecimal() else 0.0
