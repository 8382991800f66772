"""The verbs of the API, one method each, for a client that sends them."""

import json
import logging
import math
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar, Unpack

from gatehouse_client.decoding import decode
from gatehouse_client.errors import Refused
from gatehouse_client.exchange import encoded, page, path
from gatehouse_client.inputs import (
    HeldLease,
    LeaseFrom,
    LeaseTasks,
    PostReceipt,
    QueueTask,
    RecallMemory,
    RegisterTaskType,
    ReleaseTask,
    ScheduleTask,
    SetQueueLimitsBody,
    StoreMemory,
    TaskCompletion,
)
from gatehouse_client.outputs import (
    AckedOutput,
    CompletedTask,
    CompletedTasks,
    EndedOne,
    FormattedEnvelope,
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
    Recollection,
    ReleasedTasks,
    ScheduleOutput,
    Schedules,
    StoredMemory,
    TaskList,
    TaskResult,
    TaskStatus,
    Timeline,
    UnsuccessfulRun,
)
from gatehouse_client.together import Item

logger = logging.getLogger("gatehouse_client")

T = TypeVar("T")

_LONGEST_POLL: Final = 50.0


@dataclass(frozen=True, kw_only=True)
class Posted:
    """A receipt that is stored, by this post or by one before."""

    receipt_id: str
    uuid: str
    entry: str | None = None
    """The entry that this post made visible, if any."""
    is_duplicate: bool = False


class Verbs(ABC):
    """What may be asked of a hub."""

    @abstractmethod
    def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | bytes | None = None,
        *,
        query: Mapping[str, Any] | None = None,
        wait: float = 0.0,
        since: float | None = None,
    ) -> dict[str, Any]:
        """The answer to a request, which is sent until there is one.

        :param body: JSON, or what becomes JSON.
        :param since: when the caller asked; default: now.
        """

    @abstractmethod
    def _queue(self, item: Item) -> QueuedTask:
        """Queue this task, perhaps with others."""

    @abstractmethod
    def _complete(self, item: Item) -> CompletedTask:
        """Complete this task, perhaps with others."""

    # Requesting work

    def register_type(self, **task_type: Unpack[RegisterTaskType]) -> None:
        """Register or change a task type."""
        self._ask("POST", path("task-types"), task_type)

    def queue(self, **task: Unpack[QueueTask]) -> QueuedTask:
        """Queue a task. Your own `idempotency_key` makes two calls one, also across restarts."""
        return self._queue(Item(content=encoded(_with_key(task))))

    def queue_many(self, tasks: Sequence[QueueTask]) -> list[QueuedOne]:
        """Queue up to 1,000 tasks; returns an answer for each, in their order. A refused one has a `code`."""
        body = {"tasks": [_with_key(task) for task in tasks]}
        return decode(QueuedTasks, self._ask("POST", path("tasks", "batch"), body)).results

    def status(self, task_id: str, *, wait: float = 0.0) -> TaskStatus:
        """How a task stands.

        :param wait: return when it has ended, at the latest after so many seconds.
        """

        def ask(poll: float) -> TaskStatus:
            query = {"wait": poll} if poll else None
            return decode(TaskStatus, self._ask("GET", path("tasks", task_id), query=query, wait=poll))

        return _polled(wait, ask, lambda status: status.complete)

    def result(self, task_id: str) -> TaskResult:
        """:raises NotFinished: if there is none yet. `status(task_id, wait=60)` waits for the end."""
        return decode(TaskResult, self._ask("GET", path("tasks", task_id, "result")))

    def cancel(self, task_id: str) -> str:
        """`canceled`; or `canceling`, if a worker holds the task and may still finish it."""
        answer = self._ask("POST", path("tasks", task_id, "cancel"), {})
        return str(answer["status"])

    def control(self, task_id: str, order: Literal["checkpoint", "drain"]) -> None:
        """Send an order with the task's next heartbeat: save a checkpoint, or save one and release the task.

        :raises Refused: `not_leased` if the task is not leased.
        """
        self._ask("POST", path("tasks", task_id, "control"), {"order": order})

    def timeline(self, task_id: str, *, limit: int = 20, cursor: str | None = None) -> Timeline:
        """The events of a task, in order.

        :param limit: runs per page; each has several events.
        :param cursor: `next` of the page before.
        """
        return decode(Timeline, self._ask("GET", path("tasks", task_id, "timeline"), query=page(limit, cursor)))

    def tasks(self, *, status: str | None = None, limit: int = 50, cursor: str | None = None) -> TaskList:
        """The tasks that you queued or receive, newest first: with the status `failed`, the dead letters.

        :param cursor: `next` of the page before.
        """
        query = page(limit, cursor) | ({} if status is None else {"status": status})
        return decode(TaskList, self._ask("GET", path("tasks"), query=query))

    def retry(self, task_id: str) -> QueuedTask:
        """Queue a dead letter again, as a new task; a repeated call returns the same task.

        :raises Refused: `not_a_dead_letter` if the task has not failed for good.
        """
        return decode(QueuedTask, self._ask("POST", path("tasks", task_id, "retry"), {}))

    def schedule(self, **schedule: Unpack[ScheduleTask]) -> ScheduleOutput:
        """Queue a task periodically. The same name again changes the schedule."""
        return decode(ScheduleOutput, self._ask("POST", path("schedules"), schedule))

    def schedules(self, *, limit: int = 50, cursor: str | None = None) -> Schedules:
        """:param cursor: `next` of the page before."""
        return decode(Schedules, self._ask("GET", path("schedules"), query=page(limit, cursor)))

    def remove_schedule(self, name: str) -> bool:
        """Remove a schedule. False if there is none of this name, also after a lost answer."""
        try:
            self._ask("DELETE", path("schedules", name))
        except Refused as refusal:
            if refusal.code != "unknown_schedule":
                raise
            return False
        return True

    # Limits

    def queues(self) -> list[QueueFigures]:
        """Figures of each queue: waiting tasks, ages, throughput, failures."""
        answer = self._ask("GET", path("queues"))
        return decode(Queues, answer).queues

    def set_queue_limits(self, queue: str, **limits: Unpack[SetQueueLimitsBody]) -> QueuePolicy:
        """Replace the limits of a queue; the limits of a type are part of `register_type`."""
        return decode(QueuePolicy, self._ask("PUT", path("queues", queue), limits))

    def pause_queue(self, queue: str, *, drain: bool = False) -> QueuePolicy:
        """Lease no tasks of a queue until it is resumed.

        :param drain: whether holders of its tasks are ordered to release them.
        """
        return decode(QueuePolicy, self._ask("POST", path("queues", queue, "pause"), {"drain": drain}))

    def resume_queue(self, queue: str) -> QueuePolicy:
        return decode(QueuePolicy, self._ask("POST", path("queues", queue, "resume"), {}))

    def pause_type(self, task_type: str) -> None:
        """Lease no task of a type until it is resumed. Leased tasks go on."""
        self._ask("POST", path("task-types", task_type, "pause"), {})

    def resume_type(self, task_type: str) -> None:
        self._ask("POST", path("task-types", task_type, "resume"), {})

    # Working

    def lease(self, **wanted: Unpack[LeaseTasks]) -> list[LeasedTask]:
        """Take up to `capacity` tasks; none if there are none, and none come within `wait_seconds` (30 at most)."""
        # The leases of a lost answer are held by nobody, and expire.
        answer = self._ask("POST", path("tasks", "lease"), wanted, wait=wanted.get("wait_seconds", 0.0))
        return [decode(LeasedTask, one) for one in answer.get("tasks", [])]

    def heartbeat(self, leases: Sequence[HeldLease]) -> list[HeartbeatAnswer]:
        """Renew leases and receive orders, one answer for each in their order. Checkpoints are saved when this returns."""
        answer = self._ask("POST", path("tasks", "heartbeat"), {"leases": leases})
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
        about = {"result_pointer": result_pointer, "result_channel": result_channel, "checksum": checksum}
        item = as_item(lease, result, summary=summary, **about)
        if not lease_next:
            return self._complete(item)
        body = {**json.loads(item.content), "lease_next": lease_next, "lease_from": lease_from}
        return decode(CompletedTask, self._ask("POST", path("tasks", lease.task_id, "complete"), body))

    def complete_many(
        self, completions: Sequence[TaskCompletion], *, lease_next: int = 0, lease_from: LeaseFrom | None = None
    ) -> CompletedTasks:
        """Complete up to 500 tasks; `results` has an answer for each, in their order. A refused one has a `code`.

        :param lease_next: how many tasks to lease by the same request.
        """
        body = {"completions": completions, "lease_next": lease_next, "lease_from": lease_from}
        return decode(CompletedTasks, self._ask("POST", path("tasks", "complete"), body))

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
        return decode(UnsuccessfulRun, self._ask("POST", path("tasks", lease.task_id, "fail"), body))

    def release(self, lease: LeasedTask) -> UnsuccessfulRun:
        """Release a task. If it was to be canceled, this cancels it.

        :raises LeaseLost: if the lease is over, or this run has ended otherwise.
        """
        body = {"lease_token": lease.lease_token}
        return decode(UnsuccessfulRun, self._ask("POST", path("tasks", lease.task_id, "release"), body))

    def release_many(self, leases: Sequence[LeasedTask]) -> list[EndedOne]:
        """Release up to 500 tasks; returns an answer for each, in their order. A refused one has a `code`."""
        releases: list[ReleaseTask] = [{"task_id": one.task_id, "lease_token": one.lease_token} for one in leases]
        return decode(ReleasedTasks, self._ask("POST", path("tasks", "release"), {"releases": releases})).results

    # Receipts

    def post(self, **receipt: Unpack[PostReceipt]) -> Posted:
        """Post a receipt to one principal. The same receipt again changes nothing (`is_duplicate`).

        :raises Refused: `dedupe_conflict` if the key was used for another receipt.
        """
        try:
            return decode(Posted, self._ask("POST", path("receipts"), receipt))
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
        answer = self._ask("GET", path("inbox"), query={k: v for k, v in query.items() if v is not None}, wait=wait)
        return decode(InboxOutput, answer)

    def wait(self, seconds: float, *, after: int = 0, source_system: str | None = None) -> InboxOutput:
        """Read as soon as there is an entry, at the latest after so many seconds."""

        def ask(poll: float) -> InboxOutput:
            return self.read(after=after, source_system=source_system, wait=poll)

        return _polled(seconds, ask, lambda inbox: bool(inbox.entries))

    def ack(self, token: str) -> AckedOutput:
        """Ack all entries up to one, as shown by the read that its `token` comes from."""
        return decode(AckedOutput, self._ask("POST", path("inbox", "ack-through"), {"through": token}))

    def ack_entries(self, refs: Sequence[str]) -> AckedOutput:
        """Ack just these entries."""
        return decode(AckedOutput, self._ask("POST", path("inbox", "ack"), {"entries": refs}))

    # For many callers at once

    def _queue_alone(self, item: Item) -> QueuedTask:
        return decode(QueuedTask, self._ask("POST", path("tasks"), item.content, since=item.since))

    def _queue_together(self, items: Sequence[Item]) -> list[QueuedTask | None]:
        body = b'{"tasks": [%b]}' % b", ".join(item.content for item in items)
        answer = self._ask("POST", path("tasks", "batch"), body, since=items[0].since)
        return [None if one["code"] else decode(QueuedTask, one) for one in answer["results"]]

    def complete_item(self, item: Item) -> CompletedTask:
        return decode(
            CompletedTask,
            self._ask("POST", path("tasks", item.task_id, "complete"), item.content, since=item.since),
        )

    def complete_items(
        self, items: Sequence[Item], *, lease_next: int = 0, lease_from: LeaseFrom | None = None
    ) -> CompletedTasks:
        """As :meth:`complete_many`, of what is JSON already."""
        completions = [b'{"task_id": %b, %b' % (json.dumps(one.task_id).encode(), one.content[1:]) for one in items]
        body = b'{"completions": [%b], "lease_next": %d, "lease_from": %b}' % (
            b", ".join(completions),
            lease_next,
            encoded(lease_from) if lease_from else b"null",
        )
        return decode(CompletedTasks, self._ask("POST", path("tasks", "complete"), body, since=items[0].since))

    def _complete_together(self, items: Sequence[Item]) -> list[CompletedTask | None]:
        results = self.complete_items(items).results
        return [None if one.code else decode(CompletedTask, {**vars(one), "next": []}) for one in results]

    # Memory

    def remember(self, **memory: Unpack[StoreMemory]) -> StoredMemory:
        """Store an observation. It is sent once, for a repeated one would stand twice.

        :raises Unreachable: if the hub did not answer; then it may be stored.
        """
        return decode(StoredMemory, self._ask("POST", path("memory", "observations"), memory, since=-math.inf))

    def recall(self, **wanted: Unpack[RecallMemory]) -> Recollection:
        """What fits a query, the best first."""
        return decode(Recollection, self._ask("POST", path("memory", "recall"), wanted))

    def envelope(self, subject_id: str, *, max_tokens: int = 2000) -> str:
        """What is known of a subject, as text for a prompt."""
        answer = self._ask("GET", path("subjects", subject_id, "envelope", "text"), query={"max_tokens": max_tokens})
        return decode(FormattedEnvelope, answer).text


def _polled(seconds: float, ask: Callable[[float], T], is_enough: Callable[[T], bool]) -> T:
    """The first answer that is enough, or the last one within so many seconds, by long polls."""
    until = time.monotonic() + seconds
    while True:
        left = max(until - time.monotonic(), 0.0)
        found = ask(min(left, _LONGEST_POLL))
        if is_enough(found) or left <= _LONGEST_POLL:
            return found


def as_item(
    lease: LeasedTask,
    result: Any,
    *,
    summary: str | None,
    result_pointer: str | None,
    result_channel: str | None,
    checksum: str | None,
) -> Item:
    """A completion as it is sent.

    :raises TypeError, ValueError: if the result is no JSON.
    """
    body = {
        "lease_token": lease.lease_token,
        "summary": summary,
        "result_pointer": result_pointer,
        "result_channel": result_channel,
        "checksum": checksum,
    }
    if result is not None:
        body["result"] = result
    return Item(content=encoded(body), task_id=lease.task_id)


def _with_key(task: Mapping[str, Any]) -> dict[str, Any]:
    """With a key, so that it may be sent again."""
    return {"idempotency_key": str(uuid.uuid4()), **task}
