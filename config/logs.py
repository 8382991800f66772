"""What the logs leave out: an idle product writes next to nothing."""

import logging
from typing import Final

_ROUTINE: Final = ("/livez", "/readyz", "/metrics", "/heartbeat")


class NotRoutine(logging.Filter):
    """Lets requests pass unless they come for ever by the clock and were served: probes, scrapes and heartbeats."""

    def filter(self, record: logging.LogRecord) -> bool:
        event = record.msg
        if record.levelno > logging.INFO or not isinstance(event, dict):
            return True
        path = str(event.get("request", "")).partition(" ")[2].partition("?")[0]
        return not path.endswith(_ROUTINE)
