"""What the logs leave out: an idle product writes next to nothing."""

from collections.abc import MutableMapping
from typing import Any, Final

import structlog

_ROUTINE: Final = ("/livez", "/readyz", "/metrics", "/heartbeat")
_REQUESTS: Final = frozenset({"request_started", "request_finished"})


def drop_routine(_logger: object, level: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Let requests pass unless they come for ever by the clock and were served: probes, scrapes and heartbeats.

    The first processor of all, so that nothing is done for what is left out.

    :raises structlog.DropEvent: to leave an event out.
    """
    if level == "info" and event.get("event") in _REQUESTS:
        path = str(event.get("request", "")).partition(" ")[2].partition("?")[0]
        if path.endswith(_ROUTINE):
            raise structlog.DropEvent
    return event
