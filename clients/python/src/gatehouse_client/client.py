"""The client: one method for each verb. Every call may be repeated, and is, until the hub has answered."""

import json
import logging
import os
import random
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Self, TypeVar, Unpack
from urllib.parse import quote

import httpx2

from gatehouse_client.errors import GatehouseError, RateLimited, Refused, Unreachable
from gatehouse_client.shapes import (
    Acked,
    Completed,
    CompletedMany,
    Completion,
    DeadLetters,
    Failure,
    Heartbeat,
    HeartbeatAnswer,
    Inbox,
    Lease,
    LeaseSource,
    NewTask,
    Posted,
    Queued,
    QueueFigures,
    QueuePolicy,
    Rate,
    ReceiptOptions,
    ResultOptions,
    Schedule,
    ScheduleOptions,
    Schedules,
    Shape,
    TaskOptions,
    TaskResult,
    TaskStatus,
    Timeline,
    TypePolicy,
    Verdict,
)

logger = logging.getLogger("gatehouse_client")

S = TypeVar("S", bound=Shape)
_NO_ANSWER: Final = (httpx2.NetworkError, httpx2.TimeoutException, httpx2.ProxyError, httpx2.RemoteProtocolError)
_TOO_MANY: Final = 429
_AWAY: Final = frozenset({502, 503, 504})
_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 5.0
_LONGEST_POLL: Final = 50.0


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

    def register_type(
        self, name: str, params_schema: dict[str, Any] | None = None, **policy: Unpack[TypePolicy]
    ) -> None:
        """Register or change a task type."""
        self._ask("POST", _path("task-types"), {"name": name, "params_schema": params_schema or {}, **policy})

    def queue(self, task_type: str, params: dict[str, Any] | None = None, **options: Unpack[TaskOptions]) -> Queued:
        """Queue a task. Your own `idempotency_key` makes two calls one, also across restarts."""
        task = {"task_type": task_type, "params": params or {}, **_with_key(options)}
        return Queued.of(self._ask("POST", _path("tasks"), task))

    def queue_many(self, tasks: Sequence[NewTask]) -> list[Queued | Refused]:
        """Queue up to 1,000 tasks; returns an answer for each, in their order."""
        answer = self._ask("POST", _path("tasks", "batch"), {"tasks": [_with_key(task) for task in tasks]})
        return _answers(Queued, answer)

    def status(self, task_id: str) -> TaskStatus:
        return TaskStatus.of(self._ask("GET", _path("tasks", task_id)))

    def result(self, task_id: str) -> TaskResult:
        """:raises NotFinished: if there is none yet. No need to poll: the end is told to the inbox."""
        return TaskResult.of(self._ask("GET", _path("tasks", task_id, "result")))

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
        return Timeline.of(self._ask("GET", _path("tasks", task_id, "timeline"), query=_page(limit, cursor)))

    def dead_letters(self, *, limit: int = 50, cursor: str | None = None) -> DeadLetters:
        """The failed tasks that you queued or receive, newest first.

        :param cursor: `next` of the page before.
        """
        return DeadLetters.of(self._ask("GET", _path("dead-letters"), query=_page(limit, cursor)))

    def retry(self, task_id: str) -> Queued:
        """Queue a dead letter again, as a new task; a repeated call returns the same task.

        :raises Refused: `not_a_dead_letter` if the task has not failed for good.
        """
        return Queued.of(self._ask("POST", _path("tasks", task_id, "retry"), {}))

    def schedule(
        self, name: str, task_type: str, params: dict[str, Any] | None = None, **options: Unpack[ScheduleOptions]
    ) -> Schedule:
        """Queue a task periodically. The same name again changes the schedule."""
        body = {"name": name, "task_type": task_type, "params": params or {}, **options}
        return Schedule.of(self._ask("POST", _path("schedules"), body))

    def schedules(self, *, limit: int = 50, cursor: str | None = None) -> Schedules:
        """:param cursor: `next` of the page before."""
        return Schedules.of(self._ask("GET", _path("schedules"), query=_page(limit, cursor)))

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
        return [QueueFigures.of(one) for one in self._ask("GET", _path("queues"))["queues"]]

    def set_queue_limits(
        self, queue: str, *, concurrency: int | None = None, rate: Rate | None = None, fair: bool = False
    ) -> QueuePolicy:
        """Set the limits of a queue; the limits of a type are part of `register_type`.

        :param concurrency: how many of its tasks may be leased at once.
        :param fair: whether its requesters share it fairly.
        """
        body = {"concurrency": concurrency, "rate": rate, "fair": fair}
        return QueuePolicy.of(self._ask("PUT", _path("queues", queue), body))

    def pause_queue(self, queue: str, *, drain: bool = False) -> QueuePolicy:
        """Lease no tasks of a queue until it is resumed.

        :param drain: whether holders of its tasks are ordered to release them.
        """
        return QueuePolicy.of(self._ask("POST", _path("queues", queue, "pause"), {"drain": drain}))

    def resume_queue(self, queue: str) -> QueuePolicy:
        return QueuePolicy.of(self._ask("POST", _path("queues", queue, "resume"), {}))

    def pause_type(self, task_type: str) -> None:
        """Lease no task of a type until it is resumed. Leased tasks go on."""
        self._ask("POST", _path("task-types", task_type, "pause"), {})

    def resume_type(self, task_type: str) -> None:
        self._ask("POST", _path("task-types", task_type, "resume"), {})

    # Working

    def lease(self, *, capacity: int = 1, wait_seconds: float = 0.0, **source: Unpack[LeaseSource]) -> list[Lease]:
        """Take up to `capacity` tasks; none if there are none, and none come within `wait_seconds` (30 at most)."""
        # The leases of a lost answer are held by nobody, and expire.
        body = {**source, "capacity": capacity, "wait_seconds": wait_seconds}
        answer = self._ask("POST", _path("tasks", "lease"), body, wait=wait_seconds)
        return [Lease.of(one) for one in answer.get("tasks", [])]

    def heartbeat(self, beats: Sequence[Heartbeat]) -> list[HeartbeatAnswer]:
        """Renew leases and receive orders, one answer for each in their order. Checkpoints are saved when this returns."""
        body = {"leases": [beat.as_member() for beat in beats]}
        answer = self._ask("POST", _path("tasks", "heartbeat"), body)
        return [HeartbeatAnswer.of(one) for one in answer["results"]]

    def complete(
        self,
        lease: Lease,
        result: Any = None,
        *,
        lease_next: int = 0,
        lease_from: LeaseSource | None = None,
        **options: Unpack[ResultOptions],
    ) -> Completed:
        """Complete a task, with its result or a pointer to it. The requester gets one receipt.

        :param lease_next: how many tasks to lease by the same request; they come as `next`.
        :raises LeaseLost: if the lease is over, or this run has ended otherwise.
        """
        body = Completion(lease=lease, result=result, **options).as_member() | _next(lease_next, lease_from)
        return Completed.of(self._ask("POST", _path("tasks", body.pop("task_id"), "complete"), body))

    def complete_many(
        self, completions: Sequence[Completion], *, lease_next: int = 0, lease_from: LeaseSource | None = None
    ) -> CompletedMany:
        """Complete up to 500 tasks. A lost lease among them is refused alone.

        :param lease_next: how many tasks to lease by the same request.
        """
        body = {"completions": [one.as_member() for one in completions]} | _next(lease_next, lease_from)
        answer = self._ask("POST", _path("tasks", "complete"), body)
        following = [Lease.of(one) for one in answer.get("next", [])]
        return CompletedMany(results=_answers(Completed, answer), next=following)

    def fail(
        self,
        lease: Lease,
        code: str,
        message: str,
        *,
        retryable: bool,
        retry_after: float | None = None,
        details: dict[str, Any] | None = None,
    ) -> Verdict:
        """Fail a run. Another run follows after a pause, or the task ends as a dead letter.

        :raises LeaseLost: if the lease is over, or this run has ended otherwise.
        """
        failure = Failure(
            lease=lease, code=code, message=message, retryable=retryable, retry_after=retry_after, details=details
        )
        body = failure.as_member()
        return Verdict.of(self._ask("POST", _path("tasks", body.pop("task_id"), "fail"), body))

    def fail_many(self, failures: Sequence[Failure]) -> list[Verdict | Refused]:
        """Fail up to 500 runs; returns an answer for each, in their order."""
        body = {"failures": [one.as_member() for one in failures]}
        return _answers(Verdict, self._ask("POST", _path("tasks", "fail"), body))

    def release(self, lease: Lease) -> Verdict:
        """Release a task. If it was to be canceled, this cancels it.

        :raises LeaseLost: if the lease is over, or this run has ended otherwise.
        """
        return Verdict.of(
            self._ask("POST", _path("tasks", lease.task_id, "release"), {"lease_token": lease.lease_token})
        )

    def release_many(self, leases: Sequence[Lease]) -> list[Verdict | Refused]:
        """Release up to 500 tasks; returns an answer for each, in their order."""
        body = {"releases": [{"task_id": one.task_id, "lease_token": one.lease_token} for one in leases]}
        return _answers(Verdict, self._ask("POST", _path("tasks", "release"), body))

    # Receipts

    def post(
        self, recipient_ai: str, *, source_system: str, dedupe_key: str, summary: str, **options: Unpack[ReceiptOptions]
    ) -> Posted:
        """Post a receipt to one principal. The same receipt again changes nothing (`is_duplicate`).

        :raises Refused: `dedupe_conflict` if the key was used for another receipt.
        """
        body = {
            "recipient_ai": recipient_ai,
            "source_system": source_system,
            "dedupe_key": dedupe_key,
            "summary": summary,
            **options,
        }
        try:
            return Posted.of(self._ask("POST", _path("receipts"), body))
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
    ) -> Inbox:
        """Your unread entries, oldest first; consumes nothing.

        :param after: only entries with a greater sequence.
        :param wait: if there are none, wait up to so many seconds (60).
        """
        query = {"after": after, "limit": limit, "source_system": source_system, "max_tokens": max_tokens, "wait": wait}
        answer = self._ask("GET", _path("inbox"), query={k: v for k, v in query.items() if v is not None}, wait=wait)
        return Inbox.of(answer)

    def wait(self, seconds: float, *, after: int = 0, source_system: str | None = None) -> Inbox:
        """Read as soon as there is an entry, at the latest after so many seconds."""
        until = time.monotonic() + seconds
        while True:
            left = max(until - time.monotonic(), 0.0)
            inbox = self.read(after=after, source_system=source_system, wait=min(left, _LONGEST_POLL))
            if inbox.entries or left <= _LONGEST_POLL:
                return inbox

    def ack(self, token: str) -> Acked:
        """Ack all entries up to one, as shown by the read that its `token` comes from."""
        return Acked.of(self._ask("POST", _path("inbox", "ack-through"), {"through": token}))

    def ack_entries(self, refs: Sequence[str]) -> Acked:
        """Ack just these entries."""
        return Acked.of(self._ask("POST", _path("inbox", "ack"), {"entries": refs}))

    # Transport

    def _ask(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
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


def _next(lease_next: int, lease_from: LeaseSource | None) -> dict[str, Any]:
    return {"lease_next": lease_next, "lease_from": lease_from} if lease_next else {}


def _answers(shape: type[S], answer: Mapping[str, Any]) -> list[S | Refused]:
    """The answers of a batch."""
    return [Refused.of(0, one) if one["code"] else shape.of(one) for one in answer["results"]]


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
