"""A worker's manifest as it is written down: what a registration takes, whichever way it comes."""

from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints

from apps.core.schemas import Input, Text

WorkerId = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]*$")]
ToolName = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
Tag = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]
Band = Literal["free", "low", "medium", "high"]
TierName = Literal["trusted", "verified", "sandbox", "untrusted"]

MOST_TOOLS: Final = 200


class SideEffects(Input):
    """What calls touch. What is left out counts as everything of its kind."""

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
    """Where they differ from the worker's."""


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


class RegisterWorker(Input):
    worker_id: WorkerId
    endpoint: Annotated[Text, Field(min_length=1, max_length=2000)]
    """Address of the worker's MCP server."""
    tools: Annotated[list[OfferedTool], Field(min_length=1, max_length=MOST_TOOLS)]
    capabilities: Annotated[list[Tag], Field(max_length=100)] = []
    """Tags for discovery."""
    constraints: ToolConstraints = ToolConstraints()
    hints: Hints = Hints()
    side_effects: SideEffects | None = None
    trust: Trust = Trust()


class StatedWorker(Input):
    """What a source says of a worker that is still to be asked what it offers."""

    endpoint: Annotated[Text, Field(min_length=1, max_length=2000)]
    """Address of its MCP server."""
    worker_id: WorkerId | None = None
    """Left out, one is made of the server's name and its address."""
    capabilities: Annotated[list[Tag], Field(max_length=100)] = []
    constraints: ToolConstraints = ToolConstraints()
    hints: Hints = Hints()
    side_effects: SideEffects | None = None
    """What calls of its tools touch. What is left out here and by the tools themselves counts as everything."""
