"""Operations of the registry."""

from typing import Annotated, Literal

from pydantic import Field

from apps.core.errors import NotFound
from apps.core.operations import Reply, Route, operation
from apps.core.schemas import Input, Name, Output, Text
from apps.principals.scopes import Scope
from apps.principals.selectors import principal_named
from apps.principals.tenancy import Caller
from apps.workers import selectors, services
from apps.workers.shapes import (
    MOST_TOOLS,
    HeartbeatTaken,
    ListWorkers,
    RegisteredWorker,
    RegisterWorker,
    ServerShown,
    ToolRef,
    WorkerId,
    WorkerList,
    WorkerManifest,
)
from apps.workers.trust import Tier

_SEES_WORKERS = (Scope.PLANS, Scope.WORKERS_REGISTER, Scope.TASKS_QUEUE)
_MANIFEST_BYTES = 1_048_576
ALL_TOOLS = "*"


class WorkerHeartbeat(Input):
    worker_id: WorkerId
    status: Literal["healthy", "degraded", "maintenance", "offline"]
    current_load: Annotated[float, Field(ge=0, le=1)] = 0.0
    available: bool = True
    """Is there room for another call?"""


class OneWorker(Input):
    worker_id: WorkerId


class AddServer(Input):
    url: Annotated[Text, Field(min_length=1, max_length=2000)]
    """Where it serves MCP over HTTP."""
    approve: Annotated[list[Annotated[Text, Field(max_length=200)]], Field(max_length=MOST_TOOLS)] = []
    """Names of tools to approve; `*`: all that it shows now. Left out, nothing is approved and the answer shows what there is."""
    name: Annotated[Text, Field(min_length=1, max_length=100)] | None = None
    """Of the source; left out, the worker's id."""
    principal: Name | None = None
    """For whom it is registered; left out, you."""


class UnregisteredWorker(Output):
    worker_id: str
    status: Literal["unregistered"]


@operation(
    title="Register an MCP worker",
    scope=Scope.WORKERS_REGISTER,
    output=RegisteredWorker,
    routes=[
        Route("POST", "/workers/register", status=201, also=(200,), max_body=_MANIFEST_BYTES),
        Route("POST", "/api/v1/workers", status=201, also=(200,), max_body=_MANIFEST_BYTES),
    ],
    idempotent=True,
    example={
        "worker_id": "weather",
        "endpoint": "https://weather.example.com/mcp",
        "tools": [{"name": "forecast", "input_schema": {"type": "object"}}],
    },
    after_refusal="Change what is named in the manifest; an id in use belongs to another principal.",
)
def register_worker(caller: Caller, given: RegisterWorker) -> Reply:
    """Register an MCP worker with its tools, or replace its manifest. A repeated call is safe.

    The claimed trust tier counts up to the ceiling of the enrolled key that signed the manifest. Plans use only the
    tools without side effects of unsigned MCP workers.
    """
    worker, created, tools = services.register(
        caller=caller, original=given.model_dump(mode="json", exclude_unset=True)
    )
    output = RegisteredWorker(
        worker_id=worker.worker_id,
        status=worker.state,
        effective_tier=Tier(worker.effective_tier).value,
        reason=worker.tier_reason,
        trust_ends_at=worker.trust_ends_at,
        tools=[ToolRef(name=tool.name, tool_uid=tool.uid) for tool in tools],
        next_heartbeat_seconds=int(services.HEARTBEAT_EVERY.total_seconds()),
    )
    return Reply(output, status=201 if created else 200)


@operation(
    title="Heartbeat of an MCP worker",
    scope=Scope.WORKERS_REGISTER,
    routes=[
        Route("POST", "/workers/{worker_id}/heartbeat"),
        Route("POST", "/api/v1/workers/{worker_id}/heartbeat"),
    ],
    idempotent=True,
    example={"worker_id": "weather", "status": "healthy"},
    after_refusal="An unknown MCP worker is registered with register_worker.",
)
def worker_heartbeat(caller: Caller, given: WorkerHeartbeat) -> HeartbeatTaken:
    """Report the status and the load of a registered MCP worker. Plans leave out those whose heartbeat is late."""
    return services.heartbeat(
        caller=caller,
        worker_id=given.worker_id,
        status=given.status,
        current_load=given.current_load,
        available=given.available,
    )


@operation(
    title="Unregister an MCP worker",
    scope=Scope.WORKERS_REGISTER,
    routes=[Route("DELETE", "/workers/{worker_id}"), Route("DELETE", "/api/v1/workers/{worker_id}")],
    destructive=True,
    example={"worker_id": "weather"},
    after_refusal="The MCP worker is unknown, or another principal's.",
)
def unregister_worker(caller: Caller, given: OneWorker) -> UnregisteredWorker:
    """Remove an MCP worker that you registered. Plans no longer choose it; its history stays."""
    worker = services.unregister(caller=caller, worker_id=given.worker_id)
    return UnregisteredWorker(worker_id=worker.worker_id, status="unregistered")


@operation(
    title="Add an MCP server",
    scope=Scope.ADMIN,
    routes=[Route("POST", "/api/v1/workers/servers")],
    tool=False,
    own_transactions=True,
)
def add_mcp_server(caller: Caller, given: AddServer) -> ServerShown:
    """Add an MCP server by its URL, look at its tools now, and approve those named in `approve`.

    An approved tool may be used in plans, and what it claims to touch counts. Another version of it needs another approval.
    Repeat the call to approve more.
    """
    seen = services.visit(given.url)
    with caller.acting():
        principal = principal_named(given.principal or caller.name)
        named = {tool.name: tool.tool_uid for tool in services.shown(given.url, seen).tools}
        unknown = [name for name in given.approve if name != ALL_TOOLS and name not in named]
        if unknown:
            raise NotFound(f"{given.url} has no tool {unknown[0]!r}; it has {', '.join(named)}.", code="unknown_tool")
        uids = [uid for name, uid in named.items() if name in given.approve or ALL_TOOLS in given.approve]
        return services.add_server(
            principal=principal, url=given.url, seen=seen, name=given.name, approve=uids, why=f"by {caller.name}"
        )


@operation(
    title="List MCP workers",
    scope=_SEES_WORKERS,
    routes=[Route("GET", "/api/v1/workers")],
    read_only=True,
    example={"available_only": True},
)
def list_workers(caller: Caller, given: ListWorkers) -> WorkerList:
    """List registered MCP workers with their tools, tags and health."""
    return selectors.workers(given)


@operation(
    title="Read the manifest of an MCP worker",
    scope=_SEES_WORKERS,
    routes=[Route("GET", "/api/v1/workers/{worker_id}/manifest")],
    read_only=True,
    example={"worker_id": "weather"},
    after_refusal="list_workers shows the MCP workers that are there.",
)
def get_worker_manifest(caller: Caller, given: OneWorker) -> WorkerManifest:
    """Read one manifest: tool schemas, constraints, hints, side effects and trust."""
    return selectors.manifest_of(given.worker_id)
