"""An MCP worker's manifest, as a registration or a source gives it, and the read models of the registry."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints

from apps.core.schemas import Input, Output, Paged, Text

WorkerId = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]*$")]
ToolName = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
Tag = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]
Band = Literal["free", "low", "medium", "high"]
TierName = Literal["trusted", "verified", "sandbox", "untrusted"]

MOST_TOOLS: Final = 200


class SideEffects(Input):
    """What calls touch. A member that is left out counts as everything of its kind."""

    filesystem: Literal["read", "write", "none"] | None = None
    network: Literal["outbound", "bidirectional", "none"] | None = None
    execution: Literal["subprocess", "container", "none"] | None = None


class OfferedTool(Input):
    name: ToolName
    description: Annotated[Text, Field(max_length=20_000)] = ""
    input_schema: dict[str, Any]
    """JSON Schema of the arguments."""
    output_schema: dict[str, Any] | None = None
    """JSON Schema of the result."""
    side_effects: SideEffects | None = None
    """Only where they differ from the worker's."""


class ToolConstraints(Input):
    max_payload_bytes: Annotated[int, Field(ge=1, lt=2**53)] | None = None
    timeout_seconds: Annotated[float, Field(gt=0, le=86_400)] | None = None
    rate_limit_per_hour: Annotated[int, Field(ge=0, lt=2**53)] | None = None
    rate_limit: Annotated[int, Field(ge=0, lt=2**53)] | None = None
    """The same as `rate_limit_per_hour`."""


class Hints(Input):
    latency_band: Literal["fast", "medium", "slow"] | None = None
    cost_band: Band | None = None
    expected_runtime: Literal["fast", "medium", "long"] | None = None
    """`fast` is under 5 seconds, `medium` under a minute, `long` longer."""
    cost_estimate: Annotated[float, Field(ge=0, le=1_000_000)] | None = None
    """USD for one call."""


class Trust(Input):
    tier: TierName = "untrusted"
    """A claim; the hub grants at most what the signing key may grant."""
    signature: Annotated[str, Field(max_length=200_000)] | None = None
    """Compact JWS (Ed25519) over the canonical JSON of the manifest without this member."""
    key_id: Annotated[Text, Field(max_length=100)] | None = None


class StatedWorker(Input):
    """What a source states of a worker whose tools are not known yet."""

    endpoint: Annotated[Text, Field(min_length=1, max_length=2000)]
    """Address of the worker's MCP server."""
    worker_id: WorkerId | None = None
    """If left out, it is made of the server's name and its address."""
    capabilities: Annotated[list[Tag], Field(max_length=100)] = []
    """Tags for discovery."""
    constraints: ToolConstraints = ToolConstraints()
    hints: Hints = Hints()
    side_effects: SideEffects | None = None
    """What calls of its tools touch. What neither this nor the tools declare counts as everything."""


class RegisterWorker(StatedWorker):
    worker_id: WorkerId
    tools: Annotated[list[OfferedTool], Field(min_length=1, max_length=MOST_TOOLS)]
    trust: Trust = Trust()


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


class HeartbeatTaken(Output):
    status: str
    """The state that the hub now sees the worker in."""
    next_heartbeat_seconds: int
    register_again: bool
    """Sign the manifest anew and register: trust in the present signature ends within five minutes, or has ended."""


class ToolShown(Output):
    name: str
    description: str
    effects: list[str]
    """What calls touch, as the server claims: read, write, network, bidirectional, exec. Unclaimed counts as all of these."""
    tool_uid: str
    approved: bool = False


class ServerShown(Output):
    """What an MCP server offers, before or after it was added."""

    url: str
    server_name: str
    worker_id: str
    source: str | None = None
    """The source that keeps looking at it; None: it was not added."""
    tools: list[ToolShown]
    left_out: list[str]
    """Tools that can't be used, each with the reason."""


class ListWorkers(Paged):
    capability: Tag | None = None
    """Only MCP workers with this tag."""
    trust_tier: TierName | None = None
    """Only MCP workers with this effective tier."""
    available_only: bool = True
    """Only MCP workers that are ready and have room."""
    limit: Annotated[int, Field(ge=1, le=500)] = 500


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
    capabilities: list[str] = []
    constraints: dict[str, Any] = {}
    hints: dict[str, Any] = {}
    side_effects: dict[str, Any] | None = None
    trust: dict[str, Any] = {}
    """The claim as it was registered; `effective_tier` of list_workers is what counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferView:
    """A worker's offer of a tool, with the figures of its calls. `barred` says why it may not be used now."""

    worker_id: str
    tool_uid: str
    capabilities: tuple[str, ...] = ()
    effects: frozenset[str] = frozenset()
    tier: str = "untrusted"
    expected_runtime: str | None = None
    latency_band: str | None = None
    cost: float = 0.0
    runs: int = 0
    successes: int = 0
    p50_seconds: float | None = None
    p95_seconds: float | None = None
    calls_per_hour: float | None = None
    max_payload_bytes: int | None = None
    barred: str | None = None
