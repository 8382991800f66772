"""Calls of workers: whom a call goes to and within which limits, the call itself, and the keeping of its answer."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from time import monotonic
from typing import Any, Final

from apps.core import foreign_schemas, strict_json
from apps.core.errors import DomainError
from apps.core.ids import parse_ref
from apps.executions import mcp_client
from apps.executions.errors import (
    CallCanceled,
    InvalidParams,
    PayloadTooLarge,
    ToolChanged,
    UnresolvedReference,
    WorkerBarred,
    WorkerCallFailed,
    WorkerUnavailable,
)
from apps.executions.models import Execution
from apps.plans import selectors as plans
from apps.plans.errors import OutsidePool
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_in
from apps.receipts.services import Group
from apps.tasks import selectors as stored_results
from apps.tasks import services as tasks
from apps.workers import selectors as workers
from apps.workers import services as registry
from apps.workers.states import ROUTABLE, State

TASK_TYPE: Final = "mcp_worker_call"
DIRECT: Final = timedelta(seconds=30)
"""How long a call may take that somebody waits for; what takes longer is to be a task."""
EVENT_FAMILY: Final = "asyncgate.task"
MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024
MAX_PARAMS_BYTES: Final = 1024 * 1024
WORKER_AWAY: Final = timedelta(minutes=2)
"""How long a step waits for a worker that takes no calls just now; after a fault of this side all heartbeats are late."""
LOOK_AGAIN: Final = timedelta(seconds=5)
_SECONDS: Final = 60
_HINT: Final = 300
_SUMMARY_BYTES: Final = 16 * 1024
_CAUSE: Final = "caused_by_receipt_id"
_HARMLESS_TWICE: Final = frozenset({"read", "network"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A tool on a worker, and what a call of it must keep to."""

    worker_id: str
    tool_name: str
    endpoint: str
    input_schema: Mapping[str, Any]
    deadline: timedelta
    max_params_bytes: int
    repeatable: bool
    """Running it twice does no harm, so a call whose outcome is unknown may be made again."""
    runtime: str
    """`fast`, `medium` or `long`, by the worker's own word."""
    cost: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """What a call brought back."""

    payload: dict[str, Any]
    seconds: float
    summary: str


def target_of(*, worker_id: str, tool_name: str, tool_uid: str | None = None) -> Target:
    """Whom a call would go to. Needs an acting transaction.

    :param tool_uid: the version of the tool that the call was planned for; None: whichever there is.
    :raises UnknownWorker: if no such worker is registered.
    :raises UnknownTool: if it has no such tool.
    :raises WorkerUnavailable: if it takes no calls just now.
    :raises ToolChanged: if the tool takes other parameters than it was planned for, or has other effects.
    :raises WorkerBarred: if its tier does not allow what the tool does.
    """
    terms = workers.terms_of(worker_id, tool_name)
    worker, tool, offer = terms.worker, terms.tool, terms.offer
    if worker.state not in ROUTABLE:
        raise WorkerUnavailable(f"{worker_id} is {worker.state}.", may_come_back=worker.state != State.QUARANTINED)
    if tool_uid not in {None, tool.tool_uid}:
        _refuse_another(tool, tool_uid or "", worker_id)
    if offer.barred is not None:
        raise WorkerBarred(f"{tool_name} of {worker_id} may not be called: {offer.barred}.")
    return Target(
        worker_id=worker.worker_id,
        tool_name=tool.name,
        endpoint=worker.endpoint,
        input_schema=tool.input_schema,
        deadline=timedelta(seconds=worker.constraints.get("timeout_seconds") or _SECONDS),
        max_params_bytes=worker.constraints.get("max_payload_bytes") or MAX_PARAMS_BYTES,
        repeatable=tool.effects <= _HARMLESS_TWICE,
        runtime=worker.hints.get("expected_runtime") or "medium",
        cost=Decimal(str(offer.cost)),
    )


def refuse_outside_pool(caller: Caller, worker_id: str) -> None:
    """A DeleGate calls whom it plans with; others are asked through the DeleGate that has them. Needs an acting transaction.

    :raises OutsidePool: if the caller is a DeleGate, and the worker is not in its pool.
    """
    delegate = plans.delegate_of(caller.principal_id) if caller.kind == Kind.DELEGATE else None
    if delegate is not None and plans.outside_pool([worker_id], delegate=delegate):
        raise OutsidePool(f"{worker_id} is not in the pool of {delegate}.")


def _refuse_another(tool: workers.ToolView, tool_uid: str, worker_id: str) -> None:
    """Refuse a version of a tool that does not take what was planned for the other, or does something else to the world."""
    planned = workers.tool_versions({tool_uid}).get(tool_uid)
    if planned is None or (planned.effects, planned.input_schema) != (tool.effects, tool.input_schema):
        raise ToolChanged(
            f"{tool.name} of {worker_id} takes other parameters or has other effects than the version that was planned."
        )


def missed_since(before: datetime | None, *, looked_for_at: datetime | None, now: datetime) -> datetime:
    """From when the absence of a worker counts that is missed at a look.

    :param before: from when it has counted until now; None: this look is the first.
    :param looked_for_at: when this look was to be. By what it is later, this side was away itself.
    """
    if before is None or looked_for_at is None:
        return now
    return before + max(now - looked_for_at, timedelta(0))


def take(target: Target) -> None:
    """Count a call that is about to be made against what the worker and its tier allow. Needs an acting transaction.

    :raises WorkerRateLimited: if there is no room for it now.
    """
    registry.take_call(worker_id=target.worker_id)


def group_of(execution: Execution) -> Group:
    """What makes the receipts of one execution's tasks one thread of an inbox, and what that thread is about."""
    return Group(
        resource_ref=execution.resource_ref,
        event_family=EVENT_FAMILY,
        summary_hint=f"Tasks of {execution.ref}: {execution.intent}"[:_HINT],
    )


def with_cause(target: Target, params: Mapping[str, Any], cause: str | None) -> Mapping[str, Any]:
    """The parameters for a tool that asks for the receipt that made the call, where nothing else is said there.

    So the chain of receipts goes on at whoever plans and does work of its own because of this call.
    """
    asked = _CAUSE in (target.input_schema.get("properties") or {})
    return {**params, _CAUSE: cause} if asked and cause is not None and _CAUSE not in params else params


def check_params(target: Target, params: Mapping[str, Any]) -> None:
    """See that a call with these parameters would be taken.

    :raises PayloadTooLarge: if they are over what the worker accepts.
    :raises InvalidParams: with a pointer to each fault, if they don't fit the tool's schema.
    """
    mcp_client.check_size(params, target.max_params_bytes)
    faults = foreign_schemas.faults(params, target.input_schema, under="params")
    if faults:
        detail = "; ".join(f"{fault.pointer}: {fault.message}" for fault in faults[:5])
        raise InvalidParams(f"{target.tool_name} does not take these parameters: {detail}", errors=faults)


def call(
    *,
    target: Target,
    params: Mapping[str, Any],
    deadline: timedelta,
    on_progress: mcp_client.Progress | None = None,
    canceled: Callable[[], bool] | None = None,
) -> Called:
    """Call the tool. Touches no database, and must not run inside a transaction.

    :raises ForbiddenEndpoint: if this deployment does not call that address.
    :raises WorkerCallFailed: one of its kinds.
    """
    began = monotonic()
    answer = mcp_client.call_tool(
        endpoint=target.endpoint,
        tool_name=target.tool_name,
        params=params,
        deadline=deadline,
        max_params_bytes=target.max_params_bytes,
        max_answer_bytes=MAX_ANSWER_BYTES,
        on_progress=on_progress,
        canceled=canceled,
    )
    said = answer.payload.get("summary")
    return Called(
        payload=answer.payload,
        seconds=monotonic() - began,
        summary=_bounded(said)
        if isinstance(said, str) and said
        else f"{target.tool_name} of {target.worker_id} has answered.",
    )


def _bounded(summary: str) -> str:
    return summary.encode()[:_SUMMARY_BYTES].decode(errors="ignore")


def keep(*, caller: Caller, value: Any) -> str:
    """Store a JSON value as an artifact of the caller's tenant and answer the pointer to it."""
    content = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    return tasks.store_artifact(tenant_id=caller.tenant_id, content=content, media_type="application/json")


def kept(*, tenant_id: int, pointer: str) -> Any:
    """The JSON value behind a pointer of the tenant.

    :raises DomainError: if the pointer leads nowhere that this deployment reads.
    :raises Unavailable: if the storage does not give it out just now.
    :raises UnresolvedReference: if what it leads to is no JSON, or none that can be stored.
    """
    with acting_in(tenant_id, "reading a result"):
        content = stored_results.open_pointer(pointer, tenant_id=tenant_id).content
    try:
        return strict_json.loads(content)
    except (strict_json.NotJSON, strict_json.UnstorableJSON) as exc:
        raise UnresolvedReference(f"What {pointer} leads to can't be used: {exc.detail}") from exc


def record(target: Target, outcome: Called | DomainError, *, seconds: float = 0.0) -> None:
    """Tell the registry how a call went, in the transaction that writes what came of it.

    Only what the worker answers for counts: not the caller's mistakes, not a cancel.
    """
    if isinstance(outcome, Called):
        seconds = outcome.seconds
    elif not isinstance(outcome, WorkerCallFailed) or isinstance(outcome, CallCanceled | PayloadTooLarge):
        return
    registry.record_call(
        worker_id=target.worker_id,
        tool_name=target.tool_name,
        ok=isinstance(outcome, Called),
        seconds=seconds,
        cost=target.cost,
    )


# The tasks that this process is running, so that their end can be followed up at once. Losing it costs a tick.
_running_here: Final[set[int]] = set()


def note_run(task_ref: str) -> None:
    """Remember that this process runs a task of this app."""
    _running_here.add(parse_ref("task", task_ref))


def was_run_here(task_id: int) -> bool:
    """Whether this process ran the task; asked once, at its end."""
    if task_id in _running_here:
        _running_here.discard(task_id)
        return True
    return False
