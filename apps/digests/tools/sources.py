"""What is set for the source systems of a tenant."""

from typing import Annotated

from pydantic import Field

from apps.core.ids import decode_position, encode_cursor
from apps.core.operations import Route, operation
from apps.core.schemas import Cursor, Input, Output
from apps.digests import selectors, services
from apps.digests.tools.shapes import Limit, Source
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller


class SourceOutput(Output):
    source_system: str
    rate_per_hour: int | None
    """How many receipts it may post in an hour; null: the deployment's limit."""
    groups_by_dedupe_key: bool
    """Its receipts are gathered by the event type and entity in their dedupe keys."""


class ListSources(Input):
    limit: Limit = 50
    cursor: Cursor | None = None
    """`next` of the page before."""


class SourcesOutput(Output):
    sources: list[SourceOutput]
    next: str | None
    """The cursor of the next page; null on the last."""


@operation(
    title="List sources",
    scope=Scope.ADMIN,
    routes=[Route("GET", "/api/v1/sources")],
    read_only=True,
    tool=False,
)
def list_sources(caller: Caller, given: ListSources) -> SourcesOutput:
    """The source systems for which something is set, in the order of their setting; all others have the defaults."""
    after = decode_position(given.cursor) if given.cursor is not None else 0
    found = selectors.sources(after=after, limit=given.limit + 1)
    page = found[: given.limit]
    return SourcesOutput(
        sources=[
            SourceOutput(
                source_system=one.name, rate_per_hour=one.rate_per_hour, groups_by_dedupe_key=one.groups_by_dedupe_key
            )
            for one in page
        ],
        next=encode_cursor(page[-1].pk) if len(found) > given.limit else None,
    )


class SetSource(Input):
    """All that is set for a source; left out is the default."""

    source_system: Source
    rate_per_hour: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    groups_by_dedupe_key: bool = False


@operation(
    title="Set a source",
    scope=Scope.ADMIN,
    routes=[Route("PUT", "/api/v1/sources")],
    idempotent=True,
    tool=False,
)
def set_source(caller: Caller, given: SetSource) -> SourceOutput:
    """Set how much a source may post and whether it is gathered by its keys. Switching that off shows what waits."""
    stored = services.set_source(
        tenant_id=caller.tenant_id,
        name=given.source_system,
        rate_per_hour=given.rate_per_hour,
        groups_by_dedupe_key=given.groups_by_dedupe_key,
    )
    return SourceOutput(
        source_system=stored.name,
        rate_per_hour=stored.rate_per_hour,
        groups_by_dedupe_key=stored.groups_by_dedupe_key,
    )
