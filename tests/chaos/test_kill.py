"""An answer is a promise: what was acknowledged a moment before the machine went is there when it is back."""

import random
import signal
from pathlib import Path
from typing import Any

import pytest

from apps.chaos.client import Client, Weather
from apps.chaos.ground import Ground, prepared
from apps.chaos.history import Recorder

pytestmark = pytest.mark.ci

_CALM = Weather(swallowed=0, doubled=0, late=0)
_TOKENS = {
    "asker": ["--principal", "asker", "--kind", "ai", "--scope", "tasks:queue", "--scope", "inbox"],
    "hand": ["--principal", "hand", "--kind", "worker", "--scope", "tasks:work"],
}


def _client(ground: Ground, name: str, history: Path) -> Client:
    return Client(
        actor=name,
        tenant="default",
        token=ground.tokens[name],
        port=ground.port,
        swallowing_port=ground.swallowing_port,
        recorder=Recorder(history),
        chance=random.Random(1),  # noqa: S311  # no secret
        name=name,
    )


def _done(client: Client, verb: str, **request: Any) -> Any:
    status, body = client.insist(verb, request, until=lambda: False, weather=_CALM)
    assert status in {200, 201}, body
    return body


def test_an_acknowledged_completion_survives_the_kill_of_the_database(tmp_path: Path) -> None:
    with prepared(settings="apps.chaos.settings", clock_of_executors=0, tokens=_TOKENS) as ground:
        asker, hand = (_client(ground, name, tmp_path / "history.jsonl") for name in ("asker", "hand"))
        assert asker.aside("POST", "/api/v1/task-types", {"name": "kept", "queue": "kept"})[0] == 201
        receipts: dict[str, str] = {}
        for number in range(4):
            task = _done(asker, "queue", task_type="kept", idempotency_key=f"k{number}")["task_id"]
            (given,) = _done(hand, "lease", queues=["kept"], capacity=1)["tasks"]
            told = _done(hand, "complete", task_id=task, lease_token=given["lease_token"], result=number)
            ground.stop_database(signal.SIGKILL)
            ground.start_database()
            receipts[task] = told["receipt_id"]
            for before, receipt in receipts.items():
                kept = _done(asker, "look_up", task_id=before)
                assert (kept["status"], kept["terminal_receipt_id"]) == ("succeeded", receipt)
        status, inbox = asker.aside("GET", "/api/v1/inbox")
        for client in (asker, hand):
            client.close()
            client.recorder.close()

    assert status == 200
    assert [entry["receipt_ids"] for entry in inbox["entries"]] == [[receipt] for receipt in receipts.values()]
