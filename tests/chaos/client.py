"""A client of the product's HTTP that writes down everything that it asks and is answered."""

import http.client
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from tests.chaos.history import Call, History, Json, now

PATIENCE: Final = 20.0
# So many calls of one actor, each with a connection of its own.
_AT_ONCE: Final = 16
# Calls of their own cost the hub twenty times what they cost together.
_FEW: Final = 40
# The server closes connections that are idle for longer.
_IDLE: Final = 2.0
# Of each verb the method, the path, and for several at once the path and what names them.
_VERBS: Final[dict[str, tuple[str, str, str, str]]] = {
    "queue": ("POST", "/api/v1/tasks", "/api/v1/tasks/batch", "tasks"),
    "lease": ("POST", "/api/v1/tasks/lease", "", ""),
    "heartbeat": ("POST", "", "/api/v1/tasks/heartbeat", "leases"),
    "complete": ("POST", "/api/v1/tasks/{task_id}/complete", "/api/v1/tasks/complete", "completions"),
    "fail": ("POST", "/api/v1/tasks/{task_id}/fail", "", ""),
    "release": ("POST", "/api/v1/tasks/{task_id}/release", "/api/v1/tasks/release", "releases"),
    "cancel": ("POST", "/api/v1/tasks/{task_id}/cancel", "", ""),
    "post": ("POST", "/api/v1/receipts", "/api/v1/receipts/batch", "receipts"),
    "read": ("GET", "/api/v1/inbox?limit={limit}&after={after}", "", ""),
    "ack": ("POST", "/api/v1/inbox/ack-through", "", ""),
    "plan": ("POST", "/api/v1/plans", "", ""),
    "submit": ("POST", "/api/v1/plans/submit", "", ""),
    "execute": ("POST", "/api/v1/executions", "", ""),
    "livez": ("GET", "/livez", "", ""),
    "report": ("GET", "/api/v1/executions/{execution_id}", "", ""),
}
# A refusal with one of these codes may be asked again.
_LATER: Final = frozenset({"busy", "unavailable"})


@dataclass(kw_only=True)
class Client:
    """One actor's connection. One thread uses it, but for the copies of its requests."""

    actor: str
    tenant: str
    token: str
    url: str
    history: History
    chance: random.Random
    _connection: http.client.HTTPConnection | None = None
    _used: float = 0.0
    _late: list[threading.Timer] = field(default_factory=list)

    def insist(self, verb: str, *requests: Json, until: Callable[[], bool]) -> list[Call]:
        """Ask until there is an answer other than "not now"; the same request, so that it happens once."""
        pause = 0.05
        while True:
            calls = self.ask(verb, *requests)
            if all(call.status is not None and call.status < 500 for call in calls) or until():
                return calls
            time.sleep(pause * (0.5 + self.chance.random()))
            pause = min(pause * 2, 0.5)

    def ask(self, verb: str, *requests: Json) -> list[Call]:
        """One call, for one or for several. Its answer may get lost, and it may arrive twice.

        Some ask for each of several by itself, at the same moment. The hub makes these calls in one transaction.
        """
        dice, many = self.chance.randrange(100), len(requests) > 1
        if many and (not _VERBS[verb][2] or (len(requests) <= _FEW and dice >= 50)):
            return self._each(verb, requests)
        if dice < 3:
            return self._exchange(self._kept(), verb, requests, "swallowed")
        if dice < 6:
            with self.beside(verb, *requests[::-1], weather="doubled"):
                return self._exchange(self._kept(), verb, requests, "clear")
        if dice < 8:
            timer = threading.Timer(self.chance.uniform(0.1, 4.0), self._copy, args=(verb, requests, "late"))
            timer.daemon = True
            timer.start()
            self._late.append(timer)
        return self._exchange(self._kept(), verb, requests, "clear")

    @contextmanager
    def beside(self, verb: str, *requests: Json, weather: str = "clear") -> Iterator[None]:
        """Ask this at the same time as what the block asks."""
        other = threading.Thread(target=self._copy, args=(verb, requests, weather))
        other.start()
        yield
        other.join()

    def aside(self, method: str, path: str, body: Json | None = None) -> tuple[int, Json]:
        """Ask something that is no part of the history, until there is an answer."""
        while True:
            with suppress(OSError, http.client.HTTPException):
                status, answer = self._send(self._kept(), method, path, body)
                if status < 500:  # HTTP
                    return status, answer
            self.reset()
            time.sleep(0.1)

    def reset(self) -> None:
        """Break the connection, as the death of a process would."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        """Wait for the copies that are still on their way."""
        for timer in self._late:
            timer.join(timeout=PATIENCE)
        self.reset()

    def _each(self, verb: str, requests: tuple[Json, ...]) -> list[Call]:
        def one(request: Json) -> Call:
            (call,) = self._copy(verb, (request,), "clear")
            if verb == "queue" and call.ok and call.body["task_id"].endswith(("0", "5")):
                # What was answered is there for the next call.
                self._copy("cancel", ({"task_id": call.body["task_id"]},), "clear")
            return call

        with ThreadPoolExecutor(_AT_ONCE) as threads:
            return list(threads.map(one, requests))

    def _kept(self) -> http.client.HTTPConnection:
        if self._connection is None or time.monotonic() - self._used > _IDLE:
            self.reset()
            self._connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=PATIENCE)
        self._used = time.monotonic()
        return self._connection

    def _copy(self, verb: str, requests: tuple[Json, ...], weather: str) -> list[Call]:
        with closing(http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=PATIENCE)) as connection:
            return self._exchange(connection, verb, requests, weather)

    def _exchange(
        self, connection: http.client.HTTPConnection, verb: str, requests: tuple[Json, ...], weather: str
    ) -> list[Call]:
        method, path, path_of_many, named = _VERBS[verb]
        about: Json = {"actor": self.actor, "tenant": self.tenant, "verb": verb, "weather": weather}
        calls = [Call(**about, request=request, begin=now()) for request in requests]
        self.history.calls.extend(calls)
        many = not path or len(requests) > 1
        # What is sent is neither what stands in the path nor what only the judge needs.
        one = {key: value for key, value in requests[0].items() if f"{{{key}}}" not in path and key != "shown"}
        body = {named: list(requests)} if many else one
        try:
            where = path_of_many if many else path.format(**requests[0])
            status, answer = self._send(connection, method, where, body)
        except (OSError, http.client.HTTPException) as exc:
            connection.close()
            status, answer = None, {"fault": repr(exc)}
        moment = now()
        for nth, call in enumerate(calls):
            if status is None or weather == "swallowed":
                call.lost = moment
                call.body = answer if status is None else {}
            else:
                call.end, call.status = moment, status
                # Pages are long, and none but their reader needs them.
                call.body = {} if verb == "read" and weather != "clear" else answer
                if many and call.ok:
                    call.status, call.body = _of_one(answer["results"][nth])
        return calls

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: Json | None
    ) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        connection.request(method, path, json.dumps(body) if method == "POST" else None, headers)
        answer = connection.getresponse()
        text = answer.read()
        try:
            return answer.status, json.loads(text) if text else {}
        except ValueError:
            return answer.status, {"text": text[:200].decode(errors="replace")}


def _of_one(told: Json) -> tuple[int, Json]:
    """The answer to one of several, as the verb for one would have told it."""
    if told.get("status") == "refused":
        return 503 if told["code"] in _LATER else 409, told
    return 200, told
