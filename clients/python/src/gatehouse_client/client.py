"""The client. Every call may be repeated, and is, until the hub has answered."""

import copy
import os
import ssl
import time
from collections.abc import Mapping
from typing import Any, Self

from gatehouse_client.errors import GatehouseError, RateLimited, Unreachable
from gatehouse_client.exchange import Patience, no_answer, read, request
from gatehouse_client.outputs import CompletedTask, QueuedTask
from gatehouse_client.together import COMPLETIONS, TASKS, Item, Together
from gatehouse_client.transport import NO_ANSWER, Transport
from gatehouse_client.verbs import Verbs


class Client(Verbs):
    """The API of a hub for one principal. Threads may share a client.

    A call that meets a broken connection, 429, 502, 503 or 504 is sent again, unchanged, until `patience` seconds are
    over; the first failure is logged. Nothing happens twice: the hub recognises a repeated request by its key or its
    lease and repeats its answer. Any other refusal is raised at once.

    What several threads queue or complete at the same moment goes together in one request.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        patience: float = 60.0,
        timeout: float = 15.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """
        :param timeout: seconds to wait for one answer, beside `wait_seconds` of a call.
        :param tls: your own certificates.
        """
        self._url = url.rstrip("/")
        self._transport = Transport(self._url, token, tls)
        self._set_limits(patience, timeout)

    @classmethod
    def from_environment(cls) -> Self:
        """Configured by GATEHOUSE_URL and GATEHOUSE_TOKEN.

        :raises GatehouseError: naming the variables that are not set.
        """
        names = ("GATEHOUSE_URL", "GATEHOUSE_TOKEN")
        if missing := [name for name in names if not os.environ.get(name)]:
            raise GatehouseError(f"Set {' and '.join(missing)} in the environment: the hub's address and your token.")
        return cls(*(os.environ[name] for name in names))

    def within(self, *, patience: float, timeout: float | None = None) -> Self:
        """The same client with other limits of time."""
        other = copy.copy(self)
        other._set_limits(patience, self._timeout if timeout is None else timeout)  # noqa: SLF001  # another self
        return other

    def close(self) -> None:
        """Close the connections. Calls that other threads are in still end well."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _set_limits(self, patience: float, timeout: float) -> None:
        self._patience = patience
        self._timeout = timeout
        self._queueing = Together[QueuedTask](self._queue_alone, self._queue_together, TASKS)
        self._completing = Together[CompletedTask](self.complete_item, self._complete_together, COMPLETIONS)

    def _queue(self, item: Item) -> QueuedTask:
        return self._queueing.ask(item)

    def _complete(self, item: Item) -> CompletedTask:
        return self._completing.ask(item)

    def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | bytes | None = None,
        *,
        query: Mapping[str, Any] | None = None,
        wait: float = 0.0,
        since: float | None = None,
    ) -> dict[str, Any]:
        sent = request(method, path, body, query, wait)
        patience = Patience(self._url, self._patience, time.monotonic() if since is None else since)
        while True:
            try:
                try:
                    return read(sent, self._transport.send(sent, self._timeout))
                except NO_ANSWER as exc:
                    raise no_answer(sent, exc) from exc
            except (Unreachable, RateLimited) as failure:
                pause = patience.before_next(failure)
            time.sleep(pause)
