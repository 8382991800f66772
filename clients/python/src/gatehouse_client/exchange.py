"""One call as a request and its answer, without a network: what to send, what an answer says, when to try again."""

import json
import logging
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from gatehouse_client.errors import RateLimited, Refused, Unreachable

logger = logging.getLogger("gatehouse_client")

_TOO_MANY: Final = 429
_AWAY: Final = frozenset({502, 503, 504})
_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 5.0


class Request(NamedTuple):
    """What is sent, unchanged each time."""

    method: str
    target: str
    """Path and query."""
    content: bytes | None = None
    wait: float = 0.0
    """How long the hub may let it wait, in seconds."""


class Answer(NamedTuple):
    """What came back."""

    status: int
    content: bytes
    retry_after: str = ""
    """The header."""


@dataclass(slots=True)
class Patience:
    """How long a call is repeated: until `seconds` have passed since it was made."""

    url: str
    seconds: float
    since: float
    _pause: float = _FIRST_PAUSE
    _is_first: bool = True

    def before_next(self, failure: Unreachable | RateLimited) -> float:
        """The seconds to sleep before the next try. The first failure is logged.

        :raises Unreachable, RateLimited: this failure, if there is no next try.
        """
        # Full jitter: clients that failed together do not retry together.
        sleep = max(failure.retry_after, random.uniform(0, self._pause))  # noqa: S311  # spreads load, hides nothing
        if time.monotonic() + sleep > self.since + self.seconds:
            raise failure
        if self._is_first:
            logger.warning("%s does not answer; trying again for %g s: %s", self.url, self.seconds, failure)
        self._is_first = False
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)
        return sleep


def encoded(body: Mapping[str, Any]) -> bytes:
    """:raises TypeError, ValueError: if this is no JSON."""
    return json.dumps(body, allow_nan=False).encode()


def request(
    method: str, path: str, body: Mapping[str, Any] | bytes | None, query: Mapping[str, Any] | None, wait: float
) -> Request:
    """A request; a body of bytes is JSON already."""
    content = encoded(body) if isinstance(body, Mapping) else body
    return Request(method, f"{path}?{urlencode(query)}" if query else path, content, wait)


def path(*parts: str) -> str:
    """A path of the API."""
    return "/".join(("/api/v1", *(quote(part, safe="") for part in parts)))


def page(limit: int, cursor: str | None) -> dict[str, Any]:
    """The query of a page."""
    return {"limit": limit} | ({"cursor": cursor} if cursor else {})


def no_answer(sent: Request, exc: Exception) -> Unreachable:
    """The error for a connection that broke."""
    return Unreachable(f"{_shown(sent)}: {type(exc).__name__} {exc}")


def read(sent: Request, answer: Answer) -> dict[str, Any]:
    """The JSON object of an answer.

    :raises Unreachable, RateLimited: if it may be sent again.
    :raises Refused: for any other refusal.
    """
    succeeded = 200 <= answer.status < 300  # noqa: PLR2004  # as HTTP says
    document = _document(answer)
    if succeeded and document is not None:
        return document
    if document is None:  # a proxy's page
        document = {"code": "no_json", "detail": answer.content.decode(errors="replace")[:200]}
    # In seconds; the header's other form, a date, is ignored.
    retry_after = float(answer.retry_after) if answer.retry_after.isdecimal() else 0.0
    if answer.status in _AWAY:
        raise Unreachable(f"{_shown(sent)}: {answer.status} {document.get('detail')}", retry_after=retry_after)
    if answer.status == _TOO_MANY:
        raise RateLimited(answer.status, document, retry_after=retry_after)
    raise Refused.of(answer.status, document)


def _document(answer: Answer) -> dict[str, Any] | None:
    if not answer.content:
        return {}
    try:
        document = json.loads(answer.content)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _shown(sent: Request) -> str:
    return f"{sent.method} {sent.target.partition('?')[0]}"
