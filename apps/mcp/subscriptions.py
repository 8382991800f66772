"""`subscriptions/listen`: a stream of notifications about the resources that a client reads.

A frame says that a resource changed, never how: the client reads it again. Nothing is replayed. A resource in which
something waits for its reader is named at once, so that a client that comes again has missed nothing. A stream ends
after a while, so that a revoked token is served no longer.
"""

from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import Any, Final

from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY, ResourceUpdated, ServerEvent, event_to_notification
from mcp_types import (
    EmptyResult,
    SubscribeRequestParams,
    SubscriptionFilter,
    SubscriptionsAcknowledgedNotification,
    SubscriptionsAcknowledgedNotificationParams,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
)

from apps.core import notifications
from apps.core.errors import DomainError
from apps.core.notifications import HEARTBEAT_SECONDS, STREAM_SECONDS, check_place, in_thread, place
from apps.mcp import resources
from apps.mcp.protocol import Exchange, Frames, Streamed, refused
from apps.principals.tenancy import Caller

_MOST: Final = 100


def listen(exchange: Exchange, params: SubscriptionsListenRequestParams) -> Streamed:
    """Notifications about those of the resources that this caller may read; the others are left out."""
    events: dict[str, ServerEvent] = {}
    for uri in (params.notifications.resource_subscriptions or [])[:_MOST]:
        topic = resources.topic(exchange.caller, uri)
        if topic is not None:
            events[topic] = ResourceUpdated(uri)
    uris = [event.uri for event in events.values() if isinstance(event, ResourceUpdated)]
    return stream(exchange, events, SubscriptionFilter(resource_subscriptions=uris or None))


def stream(exchange: Exchange, events: Mapping[str, ServerEvent], honored: SubscriptionFilter) -> Streamed:
    """A stream that acknowledges what it honors, then sends a frame whenever one of these topics is notified.

    :raises ProtocolError: if too many streams are open.
    """
    try:
        check_place(exchange.caller)
    except DomainError as exc:
        raise refused(exc) from exc
    meta: dict[str, Any] = {SUBSCRIPTION_ID_META_KEY: exchange.envelope.id}

    async def frames() -> Frames:
        listening = notifications.listen(events, lasting=STREAM_SECONDS, heartbeat=HEARTBEAT_SECONDS)
        async with AsyncExitStack() as open_until_then:
            open_until_then.enter_context(place(exchange.caller))
            heard = await open_until_then.enter_async_context(aclosing(listening))
            await anext(heard)
            waiting = await in_thread(partial(_waiting, exchange.caller, events.values()))
            yield SubscriptionsAcknowledgedNotification(
                params=SubscriptionsAcknowledgedNotificationParams(notifications=honored, _meta=meta)
            )
            for event in waiting:
                yield event_to_notification(event, meta)
            async for topic in heard:
                yield event_to_notification(events[topic], meta) if topic is not None else None
        yield SubscriptionsListenResult(_meta=meta)

    return Streamed(frames)


def _waiting(caller: Caller, events: Collection[ServerEvent]) -> list[ServerEvent]:
    return [event for event in events if isinstance(event, ResourceUpdated) and resources.waits(caller, event.uri)]


def subscribe(exchange: Exchange, params: SubscribeRequestParams) -> EmptyResult:
    """A request of older revisions, for a stream that this server neither has nor announces.

    :raises ProtocolError: if there is no such resource for this caller.
    """
    resources.check(exchange, params.uri)
    return EmptyResult()
