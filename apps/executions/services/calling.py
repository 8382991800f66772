"""One call of one worker's tool without a plan."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from apps.core.errors import DomainError
from apps.executions import calls, selectors
from apps.executions.errors import DirectCallsAreNotKept
from apps.principals.tenancy import Caller
from apps.tasks import services as tasks
from apps.tasks.services import QueuedTask, QueueRequest


class CallMode(StrEnum):
    """`auto` calls what the worker says is fast, and queues the rest and what has an idempotency key."""

    AUTO = "auto"
    DIRECT = "direct"
    ASYNC = "async"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What a direct call brought back, and where it is kept."""

    payload: dict[str, Any]
    result_pointer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWishes:
    """What a caller wants of the task that a call may become.

    `execution_ref` names the execution that it belongs to: its receipts are grouped and chained with it.
    """

    idempotency_key: str | None = None
    caused_by: str | None = None
    execution_ref: str | None = None


_NO_WISHES: Final = TaskWishes()


def call_worker(
    *,
    caller: Caller,
    worker_id: str,
    tool_name: str,
    params: Mapping[str, Any],
    mode: CallMode,
    task: TaskWishes = _NO_WISHES,
) -> Answered | QueuedTask:
    """Call a tool and wait for it, or queue the call. Opens its own transactions.

    :raises DirectCallsAreNotKept: if the call is to be direct, and has an idempotency key.
    :raises UnknownWorker: if no such worker is registered.
    :raises UnknownTool: if it has no such tool.
    :raises OutsidePool: if the caller is a DeleGate, and the worker is not in its pool.
    :raises UnknownExecution: if the caller has no such execution.
    :raises InvalidParams: if the parameters don't fit; nothing was sent or queued.
    :raises WorkerRateLimited: if the worker may not be sent another call just now; a queued call waits instead.
    :raises WorkerCallFailed: if a direct call gave no result.
    """
    if mode == CallMode.DIRECT and task.idempotency_key is not None:
        raise DirectCallsAreNotKept("A direct call is made each time; with an idempotency_key, ask for auto or async.")
    with caller.acting():
        target = calls.target_of(worker_id=worker_id, tool_name=tool_name)
        calls.refuse_outside_pool(caller, worker_id)
        execution = None if task.execution_ref is None else selectors.execution_of(caller, task.execution_ref)
        cause = task.caused_by or (None if execution is None else execution.plan_receipt_id)
        params = calls.with_cause(target, params, cause)
        calls.check_params(target, params)
        may_be_direct = target.runtime == "fast" and task.idempotency_key is None
        if mode == CallMode.ASYNC or (mode == CallMode.AUTO and not may_be_direct):
            group = None if execution is None else calls.group_of(execution)
            return tasks.queue(
                requester=caller,
                request=QueueRequest(
                    task_type=calls.TASK_TYPE,
                    params={"worker_id": worker_id, "tool_name": tool_name, "params": dict(params)},
                    idempotency_key=task.idempotency_key,
                    caused_by=cause,
                    group=group,
                ),
            )
        calls.take(target)
    try:
        called = calls.call(target=target, params=params, deadline=min(target.deadline, calls.DIRECT))
    except DomainError as refusal:
        with caller.acting():
            calls.record(target, refusal)
        raise
    pointer = calls.keep(caller=caller, value=called.payload)
    with caller.acting():
        calls.record(target, called)
    return Answered(payload=called.payload, result_pointer=pointer)
