"""What the server asks its client on a stream, and who may answer it."""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from anyio import run
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    INVALID_PARAMS,
    PROTOCOL_VERSION_META_KEY,
    ElicitResult,
    JSONRPCRequest,
)

from apps.core.notifications import in_thread
from apps.mcp import asking
from apps.mcp.asking import Question, Unanswered, elicit
from apps.mcp.protocol import Envelope, Exchange
from apps.mcp.tasks import EXTENSION
from apps.principals.models import Tenant
from apps.principals.scopes import Scope
from tests.executions.making import make_worker
from tests.executions.workers import WorkerServer, serving
from tests.factories import make_caller, make_token
from tests.mcp.node import run_node
from tests.mcp.raw import MODERN, modern, post
from tests.server import Server

NAME = elicit("Who?", {"name": {"type": "string"}})
ACCEPTED = {"action": "accept", "content": {"name": "Kee"}}


def ask(acme: Tenant, *answers: tuple[str, Mapping[str, Any]]) -> tuple[list[int], Question]:
    """Ask Kee, and post these answers, each by its token; the statuses of these posts and the question."""
    envelope = Envelope(id=1, method="tools/call", params=None, version="2025-11-25", capabilities={})
    exchange = Exchange(known=make_caller(acme), envelope=envelope, body_size=0, credential=cast(Any, None))
    question, said = Question(exchange, NAME), []

    async def converse() -> None:
        with anyio.fail_after(30):
            async for sent in question.asked():
                if isinstance(sent, JSONRPCRequest):
                    assert sent.method == "elicitation/create"
                    for token, answer in answers:
                        body = {"jsonrpc": "2.0", "id": sent.id, **answer}
                        said.append((await in_thread(lambda t=token, b=body: post(b, t))).status_code)  # type: ignore[misc]

    run(converse)
    return said, question


def test_only_who_was_asked_answers(acme: Tenant) -> None:
    token, another = make_token(acme), make_token(acme, "Another")
    said, question = ask(acme, (another, {"result": {"action": "decline"}}), (token, {"result": ACCEPTED}))
    assert said == [400, 202]
    assert question.answer == ElicitResult(action="accept", content={"name": "Kee"})


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ({"error": {"code": -1, "message": "No one is here."}}, "No one is here."),
        ({"result": {"action": "perhaps"}}, "shape"),
    ],
)
def test_answer_that_is_none_ends_the_wait(acme: Tenant, answer: Mapping[str, Any], sentence: str) -> None:
    with pytest.raises(Unanswered, match=sentence):
        ask(acme, (make_token(acme), answer))


def test_nobody_waits_for_ever(acme: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "ANSWER_SECONDS", 1)
    with pytest.raises(Unanswered, match="in time"):
        ask(acme)


@pytest.fixture
def token(acme: Tenant, worker: WorkerServer) -> str:
    """Kee's token. A worker repeats a text, and knows the weather of a city."""

    def takes(param: str) -> dict[str, Any]:
        return {"type": "object", "properties": {param: {"type": "string"}}, "required": [param]}

    offered = [
        {"name": "echo", "description": "Echo a text.", "input_schema": takes("text")},
        {"name": "get_weather", "description": "Get the weather of a city.", "input_schema": takes("city")},
    ]
    make_worker(make_caller(acme), worker, tools=offered)
    return make_token(acme)


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerServer]:
    with serving() as started:
        yield started


@dataclass
class Person:
    """Who looks at the forms that a client shows, and gives each this answer."""

    answer: ElicitResult
    shown: list[Any] = field(default_factory=list)

    def call(self, server: Server, token: str, mode: str, tool: str, intent: str) -> Any:
        async def look(context: object, params: Any) -> ElicitResult:
            self.shown.append(params)
            return self.answer

        bridge = StdioServerParameters(
            command=sys.executable,
            args=["manage.py", "mcp_stdio", "--url", server.url],
            env={**os.environ, "GATEHOUSE_TOKEN": token},
        )

        async def converse() -> Any:
            by_pipe = Client(bridge, mode="legacy", elicitation_callback=look)
            speaks = by_pipe if mode == "stdio" else server.client(token, mode, elicitation_callback=look)
            async with speaks as client:
                return (await client.call_tool(tool, {"intent": intent})).structured_content

        return run(converse)


MODES = pytest.mark.parametrize("mode", ["auto", "legacy"])
SAYS_HELLO = ElicitResult(action="accept", content={"question-1": "hello"})


@pytest.mark.parametrize("mode", ["auto", "legacy", pytest.param("stdio", marks=pytest.mark.ci)])
def test_person_answers_the_planner_and_the_request_is_carried_out(server: Server, token: str, mode: str) -> None:
    person = Person(SAYS_HELLO)
    made = person.call(server, token, mode, "carry_out_request", "Echo the text")

    (form,) = person.shown
    assert form.message == "Echo the text"
    asked = {"type": "string", "title": "text", "description": "What is “text” for echo?"}
    assert form.requested_schema["properties"] == {"question-1": asked}
    assert (made["status"], made["execution"]["direct_results"][0]["text"]) == ("ready", "hello")


@MODES
def test_person_confirms_a_guess(server: Server, token: str, mode: str) -> None:
    person = Person(ElicitResult(action="accept", content={}))
    made = person.call(server, token, mode, "create_delegation_plan", "weather in vienna")

    assert "vienna" in person.shown[0].message
    assert made["status"] == "ready"


@MODES
@pytest.mark.parametrize("answer", [ElicitResult(action="decline"), ElicitResult(action="accept", content={})])
def test_plan_that_nobody_answers_says_what_to_do(server: Server, token: str, mode: str, answer: ElicitResult) -> None:
    made = Person(answer).call(server, token, mode, "carry_out_request", "Echo the text")
    assert (made["status"], made["execution"]) == ("needs_input", None)
    assert "answer_plan" in made["next_step"]


def able(method: str, token: str, **given: Any) -> Any:
    """What a client of the stateless revision is answered that can elicit and knows tasks."""
    able_to: Any = {"elicitation": {}, "extensions": {EXTENSION: {}}}
    meta = {PROTOCOL_VERSION_META_KEY: MODERN, CLIENT_CAPABILITIES_META_KEY: able_to}
    named = {"Mcp-Name": given["taskId"]} if "taskId" in given else {}
    return modern(method, {"_meta": meta, **given}, token, **named).json()


def test_form_is_for_who_called_and_for_this_tool(token: str, acme: Tenant) -> None:
    def call(tool: str, token: str, **more: Any) -> Any:
        return able("tools/call", token, name=tool, arguments={"intent": "Echo the text"}, **more)

    state = call("carry_out_request", token)["result"]["requestState"]
    for tool, caller, told in (
        ("carry_out_request", make_token(acme, "Another"), state),
        ("create_delegation_plan", token, state),
        ("carry_out_request", token, state[:-1]),
    ):
        assert call(tool, caller, requestState=told)["error"]["code"] == INVALID_PARAMS
    assert call("carry_out_request", token, requestState=state)["result"]["resultType"] == "input_required"


def test_queued_call_is_a_task_for_who_knows_tasks(token: str, acme: Tenant) -> None:
    arguments = {"worker_id": "texter", "tool_name": "echo", "params": {"text": "hello"}, "mode": "async"}
    begun = able("tools/call", token, name="call_worker_tool", arguments=arguments)["result"]
    assert (begun["resultType"], begun["status"]) == ("task", "working")
    task_id = begun["taskId"]

    assert able("tasks/get", make_token(acme, "Another"), taskId=task_id)["error"]["code"] == INVALID_PARAMS
    assert able("tasks/cancel", token, taskId=task_id)["result"]["resultType"] == "complete"
    assert able("tasks/get", token, taskId=task_id)["result"]["status"] == "cancelled"
    plans_only = make_token(acme, "Planner", scopes=[Scope.PLANS])
    outcome = able("tools/call", plans_only, name="call_worker_tool", arguments=arguments)["result"]
    assert outcome["structuredContent"]["status"] == "queued"


def test_execution_that_ended_at_once_is_a_result_and_no_task(token: str) -> None:
    made = able("tools/call", token, name="carry_out_request", arguments={"intent": 'Echo "hello"'})["result"]
    assert made["structuredContent"]["execution"]["status"] == "complete"


@pytest.mark.ci
@pytest.mark.parametrize("era", ["legacy", "2026-07-28"])
def test_clients_in_typescript_show_the_form(server: Server, token: str, packages: Path, era: str) -> None:
    call = {"name": "carry_out_request", "arguments": {"intent": "Echo the text"}}
    given = [f"{server.url}/mcp", token, json.dumps(call), SAYS_HELLO.model_dump_json(exclude_none=True)]
    told = json.loads(run_node(packages / "elicit.mjs", era, *given).stdout)

    assert [form["message"] for form in told["forms"]] == ["Echo the text"]
    assert told["result"]["structuredContent"]["execution"]["direct_results"][0]["text"] == "hello"
    assert told["start"]["structuredContent"]["inbox_items"] == []
    assert told["acked"]["structuredContent"]["acked_receipts"] >= 1
