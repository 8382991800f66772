"""Operations of the registry."""

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from apps.core.ids import decode_position, encode_cursor
from apps.core.operations import Reply, Route, operation
from apps.core.schemas import Cursor, Input, Output, Text
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller
from apps.workers import selectors, services
from apps.workers.shapes import RegisterWorker, Tag, TierName, WorkerId
from apps.workers.trust import Tier

_SEES_WORKERS = (Scope.PLANS, Scope.WORKERS_REGISTER, Scope.TASKS_QUEUE)
_MANIFEST_BYTES = 1_048_576


class ToolRef(Output):
    name: str
    tool_uid: str
    """Hash of the tool's contract: it names this version."""


class RegisteredWorker(Output):
    worker_id: str
    status: str
    effective_tier: TierName
    reason: str
    """Why it has this tier."""
    trust_ends_at: datetime | None
    """When the signature ends. With it ends the trust, unless a registration signed anew comes before."""
    tools: list[ToolRef]
    next_heartbeat_seconds: int


class WorkerHeartbeat(Input):
    worker_id: WorkerId
    status: Literal["healthy", "degraded", "maintenance", "offline"]
    current_load: Annotated[float, Field(ge=0, le=1)] = 0.0
    available: bool = True
    """Is there room for another call?"""


class HeartbeatTaken(Output):
    status: str
    """The state that the hub now sees the worker in."""
    next_heartbeat_seconds: int
    register_again: bool
    """Sign the manifest anew and register: trust in the present signature ends within five minutes, or has ended."""


class OneWorker(Input):
    worker_id: WorkerId


class UnregisteredWorker(Output):
    worker_id: str
    status: Literal["unregistered"]


class ListWorkers(Input):
    capability: Tag | None = None
    """Only workers with this tag."""
    trust_tier: TierName | None = None
    """Only workers with this effective tier."""
    available_only: bool = True
    """Only workers that are well and have room."""
    limit: Annotated[int, Field(ge=1, le=500)] = 500
    cursor: Cursor | None = None


class WorkerSummary(Output):
    worker_id: str
    capabilities: list[str]
    tools: list[str]
    hints: dict[str, Any]
    status: str
    effective_tier: TierName
    available: bool


class WorkerList(Output):
    workers: list[WorkerSummary]
    next: str | None
    """The cursor of the next page."""


class WorkerManifest(Output):
    worker_id: str
    endpoint: str
    tools: list[dict[str, Any]]
    capabilities: list[str]
    constraints: dict[str, Any]
    hints: dict[str, Any]
    side_effects: dict[str, Any] | None
    trust: dict[str, Any]
    """The claim as it was registered; `effective_tier` is what counts."""
    effective_tier: TierName
    status: str


class SearchCapabilities(Input):
    query: Annotated[Text, Field(min_length=1, max_length=2000)]
    """What you look for, in plain words."""
    limit: Annotated[int, Field(ge=1, le=100)] = 20


class MatchedWord(Output):
    word: str
    """Of the query."""
    found: str
    """The tool's word that it was found as."""
    where: list[Literal["name", "capabilities", "description", "params"]]
    share: float
    """How much of the relevance it makes."""
    typo: bool
    """It was read as a misspelling of what was found, at a discount."""


class CapabilityMatch(Output):
    worker_id: str
    tool_name: str
    relevance_score: float
    """Share of the query's weight that the tool's words carry, 0 to 1: the sum of the shares in `matched`."""
    description: str
    matched: list[MatchedWord]
    missed: list[str]
    """Words of the query that the tool does not carry."""


class CapabilityMatches(Output):
    matches: list[CapabilityMatch]


@operation(
    title="Register a worker",
    scope=Scope.WORKERS_REGISTER,
    output=RegisteredWorker,
    routes=[
        Route("POST", "/workers/register", status=201, also=(200,), max_body=_MANIFEST_BYTES),
        Route("POST", "/api/v1/workers", status=201, also=(200,), max_body=_MANIFEST_BYTES),
    ],
    idempotent=True,
)
def register_worker(caller: Caller, given: RegisterWorker) -> Reply:
    """Announce an MCP worker with its tools, or replace its manifest. Repeating it is harmless.

    The claimed trust tier counts only as far as an enrolled key has signed the manifest; unsigned workers may run tools without side effects.
    """
    done = services.register(caller=caller, original=given.model_dump(mode="json", exclude_unset=True))
    output = RegisteredWorker(
        worker_id=done.worker.worker_id,
        status=done.worker.state,
        effective_tier=_tier(done.worker.effective_tier),
        reason=done.worker.tier_reason,
        trust_ends_at=done.worker.trust_ends_at,
        tools=[ToolRef(name=tool.name, tool_uid=tool.uid) for tool in done.tools],
        next_heartbeat_seconds=_next_heartbeat(),
    )
    return Reply(output, status=201 if done.created else 200)


@operation(
    title="Worker heartbeat",
    scope=Scope.WORKERS_REGISTER,
    routes=[
        Route("POST", "/workers/{worker_id}/heartbeat"),
        Route("POST", "/api/v1/workers/{worker_id}/heartbeat"),
    ],
    idempotent=True,
)
def worker_heartbeat(caller: Caller, given: WorkerHeartbeat) -> HeartbeatTaken:
    """Say that a registered worker is alive, how loaded it is and whether it has room. Late workers are not planned for."""
    taken = services.heartbeat(
        caller=caller,
        worker_id=given.worker_id,
        status=given.status,
        current_load=given.current_load,
        available=given.available,
    )
    return HeartbeatTaken(
        status=taken.state,
        next_heartbeat_seconds=_next_heartbeat(),
        register_again=taken.register_again,
    )


@operation(
    title="Unregister a worker",
    scope=Scope.WORKERS_REGISTER,
    routes=[Route("DELETE", "/workers/{worker_id}"), Route("DELETE", "/api/v1/workers/{worker_id}")],
    destructive=True,
)
def unregister_worker(caller: Caller, given: OneWorker) -> UnregisteredWorker:
    """Take a worker that you registered out of the registry. Plans no longer choose it; its history stays."""
    worker = services.unregister(caller=caller, worker_id=given.worker_id)
    return UnregisteredWorker(worker_id=worker.worker_id, status="unregistered")


@operation(title="List workers", scope=_SEES_WORKERS, routes=[Route("GET", "/api/v1/workers")], read_only=True)
def list_workers(caller: Caller, given: ListWorkers) -> WorkerList:
    """List registered workers with their tools, tags and health."""
    tier = None if given.trust_tier is None else Tier(given.trust_tier)
    found = selectors.workers(
        capability=given.capability,
        trust_tier=tier,
        available_only=given.available_only,
        after=decode_position(given.cursor) if given.cursor else 0,
        limit=given.limit + 1,
    )
    page = found[: given.limit]
    return WorkerList(
        next=encode_cursor(page[-1].key) if len(found) > len(page) else None,
        workers=[
            WorkerSummary(
                worker_id=one.worker.worker_id,
                capabilities=list(one.worker.capabilities),
                tools=list(one.tools),
                hints=dict(one.worker.hints),
                status=one.worker.state,
                effective_tier=_tier(one.worker.effective_tier),
                available=one.worker.is_available,
            )
            for one in page
        ],
    )


@operation(
    title="Read a worker's manifest",
    scope=_SEES_WORKERS,
    routes=[Route("GET", "/api/v1/workers/{worker_id}/manifest")],
    read_only=True,
)
def get_worker_manifest(caller: Caller, given: OneWorker) -> WorkerManifest:
    """Read one worker's manifest: complete tool schemas, constraints, hints, side effects and trust."""
    worker, manifest = selectors.worker_named(given.worker_id), selectors.manifest_of(given.worker_id)
    return WorkerManifest(
        worker_id=worker.worker_id,
        endpoint=worker.endpoint,
        tools=manifest["tools"],
        capabilities=list(worker.capabilities),
        constraints=dict(worker.constraints),
        hints=dict(worker.hints),
        side_effects=manifest.get("side_effects"),
        trust=manifest.get("trust", {}),
        effective_tier=_tier(worker.effective_tier),
        status=worker.state,
    )


@operation(
    title="Search capabilities",
    scope=_SEES_WORKERS,
    routes=[Route("GET", "/api/v1/capabilities/search")],
    read_only=True,
)
def search_capabilities(caller: Caller, given: SearchCapabilities) -> CapabilityMatches:
    """Find tools of well workers by plain words, best first, each with the words that it was found by. Typos are forgiven."""
    found = selectors.search(given.query, tenant_id=caller.tenant_id, limit=given.limit)
    return CapabilityMatches(
        matches=[
            CapabilityMatch(
                worker_id=match.entry.worker_id,
                tool_name=match.entry.tool_name,
                relevance_score=match.relevance,
                description=match.entry.description,
                matched=[MatchedWord.model_validate(asdict(word)) for word in match.matched],
                missed=list(match.missed),
            )
            for match in found
        ]
    )


def _tier(name: str) -> TierName:
    return Tier(name).value  # type: ignore[return-value]  # the enum's values are exactly these


def _next_heartbeat() -> int:
    return int(services.HEARTBEAT_EVERY.total_seconds())
