"""A small model that may say what the planner cannot read: it fills gaps, and what it lies, delays or refuses changes nothing."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from pytest_django import Settings

from apps.plans.documents import canonical
from apps.plans.services import asking, suggestions
from apps.plans.suggestions import Gap, Suggested, answer, gaps_of, question
from apps.plans.tools import CreatedPlan, CreatePlan, create_delegation_plan
from apps.plans.validation import validate
from apps.principals.tenancy import Caller, acting_as
from apps.workers.services import registry as workers
from tests.plans.shelf import FULL, RESIZE, make_plan
from tests.workers.factories import make_manifest

WISH = "Resize the picture /tmp/a.png so that it is 640 across"


def completion(said: object) -> bytes:
    content = said if isinstance(said, str) else json.dumps({"gaps": said})
    return json.dumps({"choices": [{"message": {"content": content}}]}).encode()


def gaps(intent: str = WISH) -> list[Gap]:
    return gaps_of(make_plan(intent).document())


def planned(intent: str, suggested: Suggested) -> Any:
    return make_plan(intent, suggested=suggested)


def test_question_names_the_gaps_of_a_refusal() -> None:
    (gap,) = gaps()
    assert (gap.kind, gap.tool_name, gap.param) == ("param", "resize_image", "width")

    asked = json.loads(question(WISH, [gap], model="small"))

    assert asked["model"] == "small"
    assert asked["response_format"]["json_schema"]["strict"] is True
    assert json.loads(asked["messages"][1]["content"])["gaps"][0]["param"] == "width"


def test_models_answer_fills_the_gap_and_is_marked() -> None:
    made = planned(WISH, answer(completion([{"gap": 0, "value": 640}]), WISH, gaps()))

    assert made.steps[0].params == {"image_path": "/tmp/a.png", "width": 640}  # noqa: S108  # only named
    assert made.steps[0].provenance["width"] == {"source": "llm"}
    assert any("A model reads width" in one for one in made.assumptions)
    assert validate(made.document(), FULL) == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"choices": []}',
        completion("Certainly! Here is your plan."),
        completion('{"gaps": 5}'),
        completion([{"gap": 0, "value": 800}]),
        completion([{"gap": 0, "value": 64}]),
        completion([{"gap": 0, "value": "wide"}]),
        completion([{"gap": 0, "value": "picture"}]),
        completion([{"gap": 0, "value": True}]),
        completion([{"gap": 0, "value": None}]),
        completion([{"gap": 7, "value": 640}, {"gap": -1, "value": 640}]),
        completion([{"gap": 0, "value": {"$ref": "x"}}]),
    ],
)
def test_broken_or_false_answer_changes_nothing(body: bytes) -> None:
    alone = canonical(make_plan(WISH).document())

    assert canonical(planned(WISH, answer(body, WISH, gaps())).document()) == alone


def test_model_may_not_choose_another_tool_for_a_change() -> None:
    intent = "Delete the file /etc/passwd"
    lie = Suggested(tools={intent: RESIZE.uid})

    assert gaps(intent) == []
    assert canonical(planned(intent, lie).document()) == canonical(make_plan(intent).document())


@pytest.mark.parametrize("intent", ["Every morning, list the files in /var/log", "Delete all files"])
def test_model_is_not_asked_about_conditions_and_changes(intent: str) -> None:
    assert gaps(intent) == []


@contextmanager
def model(body: bytes, *, status: int = 200, gate: threading.Event | None = None) -> Iterator[tuple[str, list[bytes]]]:
    """An endpoint of the OpenAI form, until the block ends; with a gate, one that answers when that is open."""
    heard: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(self.rfile.read(int(self.headers["Content-Length"])))
            if gate is not None:
                gate.wait(60)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing is told."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1/chat/completions", heard
    finally:
        if gate is not None:
            gate.set()
        server.shutdown()
        thread.join()
        server.server_close()


def resizer(caller: Caller) -> None:
    tool = {
        "name": RESIZE.name,
        "description": RESIZE.description,
        "input_schema": RESIZE.input_schema,
        "output_schema": RESIZE.output_schema,
    }
    nothing = {"filesystem": "none", "network": "none", "execution": "none"}
    with acting_as(caller):
        workers.register(caller=caller, original=make_manifest("darkroom", tools=[tool], side_effects=nothing))


def ask(caller: Caller) -> CreatedPlan:
    return create_delegation_plan(caller, CreatePlan(intent=WISH))


@pytest.mark.django_db(transaction=True)
def test_endpoint_is_asked_once_and_only_about_gaps(
    kee: Caller, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "_DEADLINE", timedelta(seconds=60))
    resizer(kee)
    assert ask(kee).status == "needs_escalation"
    with model(completion([{"gap": 0, "value": 640}])) as (url, heard):
        settings.PLANNER_MODEL_URL, settings.PLANNER_MODEL = url, "small"
        made = ask(kee)

        assert (made.status, made.steps[0]["params"]["width"], len(heard)) == ("ready", 640, 1)
        create_delegation_plan(kee, CreatePlan(intent="Resize the picture /tmp/a.png to a width of 640 pixels"))
        assert len(heard) == 1


@pytest.mark.django_db(transaction=True)
def test_failing_endpoint_changes_nothing(kee: Caller, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "_DEADLINE", timedelta(milliseconds=200))
    resizer(kee)
    alone = ask(kee).plan["missing"]
    settings.PLANNER_MODEL = "small"
    with model(b"", gate=threading.Event()) as (slow, _), model(b"no", status=500) as (broken, _):
        for url in ("http://127.0.0.1:9/v1", "not an address", slow, broken):
            settings.PLANNER_MODEL_URL = url
            made = ask(kee)
            assert (made.status, made.plan["missing"]) == ("needs_escalation", alone)


def test_plan_without_gaps_asks_nobody(settings: Settings) -> None:
    settings.PLANNER_MODEL_URL = "http://127.0.0.1:9/v1"

    assert not suggestions(document=make_plan("List the files in /var/log").document())
