"""A client of the product's HTTP that writes down everything it asks and is told. Plain Python."""

import http.client
import json
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from apps.chaos.history import Json, Recorder, now

PATIENCE: Final = 20.0
# The server closes connections that are idle a little longer.
_IDLE: Final = 2.0
_PATHS: Final = {
    "queue": "/api/v1/tasks",
    "queue_many": "/api/v1/tasks/batch",
    "lease": "/api/v1/tasks/lease",
    "heartbeat": "/api/v1/tasks/heartbeat",
    **{verb: f"/api/v1/tasks/{{task_id}}/{verb}" for verb in ("complete", "fail", "release", "cancel")},
    **{f"{verb}_many": f"/api/v1/tasks/{verb}" for verb in ("complete", "fail", "release")},
    **{verb: f"/api/v1/queues/{{queue}}/{verb}" for verb in ("pause", "resume")},
    "look_up": "/api/v1/tasks/{task_id}",
    "schedule": "/api/v1/schedules",
    "unschedule": "/api/v1/schedules/{name}",
}
_METHODS: Final = {"look_up": "GET", "unschedule": "DELETE"}
_SEVERAL: Final = ("leases", "tasks", "completions", "failures", "releases")
Sent = tuple[int | None, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """How often something happens to a request on its way, of a hundred."""

    swallowed: int = 3
    """Its answer is lost after the commit."""
    doubled: int = 3
    """It arrives twice at once."""
    late: int = 2
    """It arrives once more, after whatever has happened since."""


@dataclass(slots=True, kw_only=True)
class Client:
    """One actor's connection. It is used by one thread, but for the copies of its requests."""

    actor: str
    tenant: str
    token: str
    port: int
    swallowing_port: int
    recorder: Recorder
    chance: random.Random
    name: str = ""
    """What its calls are numbered under; no other process has it."""
    _numbers: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _connection: http.client.HTTPConnection | None = None
    _used: float = 0.0
    _late: list[threading.Timer] = field(default_factory=list)

    def insist(self, verb: str, request: Json, *, until: Callable[[], bool], weather: Weather | None = None) -> Sent:
        """Ask until there is an answer other than "not now"; the same request, so that it happens once."""
        pause = 0.02
        while True:
            status, body = self.ask(verb, request, weather=weather)
            if (status is not None and status < 500) or until():  # noqa: PLR2004  # HTTP's failures
                return status, body
            time.sleep(pause * (0.5 + self.chance.random()))
            pause = min(pause * 2, 0.5)

    def ask(self, verb: str, request: Json, *, weather: Weather | None = None) -> Sent:
        """One call, whatever the weather does to it."""
        weather = weather or Weather()
        dice = self.chance.randrange(100)
        if dice < weather.swallowed:
            return self._swallowed(verb, request)
        if dice < weather.swallowed + weather.doubled:
            return self._doubled(verb, request)
        if dice < weather.swallowed + weather.doubled + weather.late:
            self._again_later(verb, request)
        return self._kept(verb, request)

    def aside(self, method: str, path: str, body: Json | None = None) -> Sent:
        """Ask something that is no part of the history."""
        connection = self._connect(self.port)
        try:
            return self._send(connection, method, path, body)
        except (OSError, http.client.HTTPException):
            return None, {}
        finally:
            connection.close()

    def close(self) -> None:
        """Wait for the copies that are still on their way."""
        for timer in self._late:
            timer.join(timeout=PATIENCE)
        if self._connection is not None:
            self._connection.close()

    def _kept(self, verb: str, request: Json) -> Sent:
        connection = self._connection
        if connection is None or time.monotonic() - self._used > _IDLE:
            connection = self._renew()
        sent = self._recorded(connection, verb, request, "clear")
        self._used = time.monotonic()
        if sent[0] is None:
            self._renew()
        return sent

    def _renew(self) -> http.client.HTTPConnection:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._connect(self.port)
        return self._connection

    def _connect(self, port: int) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)

    def _once(self, verb: str, request: Json, weather: str) -> Sent:
        connection = self._connect(self.swallowing_port if weather == "swallowed" else self.port)
        try:
            return self._recorded(connection, verb, request, weather)
        finally:
            connection.close()

    def _swallowed(self, verb: str, request: Json) -> Sent:
        return self._once(verb, request, "swallowed")

    def _doubled(self, verb: str, request: Json) -> Sent:
        twin = dict(request)
        # What names several names them in another order.
        twin |= {name: twin[name][::-1] for name in _SEVERAL if name in twin}
        other = threading.Thread(target=self._once, args=(verb, twin, "doubled"))
        other.start()
        try:
            return self._kept(verb, request)
        finally:
            other.join()

    def _again_later(self, verb: str, request: Json) -> None:
        self._late = [timer for timer in self._late if timer.is_alive()]
        timer = threading.Timer(self.chance.uniform(0.1, 4.0), self._once, args=(verb, request, "late"))
        timer.daemon = True
        timer.start()
        self._late.append(timer)

    def _recorded(self, connection: http.client.HTTPConnection, verb: str, request: Json, weather: str) -> Sent:
        with self._lock:
            self._numbers += 1
            number = f"{self.name}-{self._numbers}"
        method, path = _METHODS.get(verb, "POST"), _PATHS[verb]
        members = {name: value for name, value in request.items() if f"{{{name}}}" not in path}
        self.recorder.tell(
            "call",
            id=number,
            actor=self.actor,
            tenant=self.tenant,
            verb=verb,
            request=request,
            weather=weather,
            at=now(),
        )
        try:
            status, body = self._send(connection, method, path.format(**request), members)
        except (OSError, http.client.HTTPException) as why:
            self.recorder.tell("loss", id=number, at=now(), why=repr(why))
            return None, {}
        self.recorder.tell("answer", id=number, at=now(), wall=time.time(), status=status, body=body)
        return status, body

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: Json | None
    ) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self.token}"}
        content = None
        if method == "POST":
            headers["Content-Type"] = "application/json"
            content = json.dumps(body)
        connection.request(method, path, content, headers)
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, _decoded(text)


def _decoded(text: bytes) -> Any:
    try:
        return json.loads(text) if text else {}
    except ValueError:
        return {"code": None, "text": text[:200].decode(errors="replace")}
