"""The tools as an agent meets them: a list that it can hold, descriptions with examples, and a way to the others."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from apps.core import operations
from apps.core.operations import Operation
from apps.core.schemas import parse
from apps.mcp import calls
from apps.mcp.tools import ranked
from apps.principals.models import Tenant
from apps.principals.scopes import FORBIDDEN, Kind, Scope
from docs import reference
from tests.factories import make_token
from tests.interfaces.asking import TOOLS, each
from tests.mcp.node import run_node
from tests.mcp.raw import modern, modern_message

FEW = [(Kind.AI, 16, 8_000), (Kind.WORKER, 8, 4_000)]
SEEDS = [
    "memory_bootstrap",
    "get_inbox_receipts",
    "read_inbox_receipt",
    "archive_inbox_receipt",
    "memory_store",
    "memory_recall",
    "memory_store_concept",
    "memory_add_concept_relationship",
    "memory_update_pattern",
    "get_memory_envelope",
    "format_envelope_for_llm",
    "queue_task",
    "check_task_status",
    "fetch_task_result",
    "complete_task",
    "cancel_task",
    "create_delegation_plan",
    "execute_delegation_plan",
    "get_plan",
    "get_plan_status",
    "list_workers",
    "get_worker_manifest",
    "search_capabilities",
    "call_worker_tool",
    "register_worker",
    "unregister_worker",
    "worker_heartbeat",
]


def listed(token: str, tools: str = "") -> dict[str, Any]:
    body, headers = modern_message("tools/list", {}, token)
    content_type = headers.pop("Content-Type")
    answer = Client().post(f"/mcp?tools={tools}", body, content_type=content_type, headers=headers)
    return json.loads(answer.content)  # type: ignore[no-any-return]


def names(token: str, tools: str = "") -> set[str]:
    return {tool["name"] for tool in listed(token, tools)["result"]["tools"]}


def called(token: str, tool: str, /, **arguments: Any) -> dict[str, Any]:
    return modern("tools/call", {"name": tool, "arguments": arguments}, token).json()["result"]  # type: ignore[no-any-return]


@pytest.fixture
def token(tenant: Tenant) -> str:
    return make_token(tenant, "everything", scopes=set(Scope))


@pytest.mark.parametrize(("kind", "most", "tokens"), FEW)
def test_list_is_short(tenant: Tenant, kind: Kind, most: int, tokens: int) -> None:
    shown = names(make_token(tenant, "all", kind, scopes=set(Scope) - FORBIDDEN[kind]))
    assert 5 < len(shown) <= most
    assert {"find_tools", "call_tool"} <= shown


@pytest.mark.ci
@pytest.mark.parametrize(("kind", "most", "tokens"), FEW)
def test_list_takes_few_tokens(tenant: Tenant, packages: Path, kind: Kind, most: int, tokens: int) -> None:
    token = make_token(tenant, "all", kind, scopes=set(Scope) - FORBIDDEN[kind])
    text = json.dumps(listed(token)["result"]["tools"])
    assert 500 < int(run_node(packages / "count.mjs", given=text).stdout) <= tokens


def test_address_asks_for_more_tools(token: str) -> None:
    few, memory, both, every = (names(token, asked) for asked in ("", "memory", "memory&tools=plans", "all"))

    assert few < memory < both < every
    assert "memory_store_concept" in memory - few
    assert "create_delegation_plan" in both - memory
    assert every == {declared.name for declared in TOOLS} | {"call_tool"}


def test_address_with_an_unknown_group_is_refused(token: str) -> None:
    error = listed(token, "memory,nonesuch")["error"]
    assert error["code"] == -32602
    assert "Unknown tools: nonesuch. There are all, admin, inbox" in error["message"]


@each(TOOLS)
def test_example_of_a_tool_is_taken(declared: Operation) -> None:
    parse(declared.input, dict(declared.example))


def test_names_of_the_seeds_are_callable() -> None:
    assert set(SEEDS) <= {declared.name for declared in TOOLS}


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("cancel a task", "cancel_task"),
        ("pausing queues", "pause_queue"),
        ("webhook", "set_target"),
        ("get_plan", "get_plan"),
        ("remember a user's preference", "remember_fact"),
        ("failed tasks", "list_tasks"),
        ("who am I", "whoami"),
        ("cron", "schedule_task"),
        ("run every night", "schedule_task"),
        ("every monday morning", "schedule_task"),
        ("priority", "queue_task"),
        ("delay a task until tomorrow", "queue_task"),
        ("notify me", "set_target"),
        ("unsubscribe", "delete_target"),
        ("mute", "set_inbox_policy"),
        ("group notifications", "set_inbox_policy"),
        ("unread messages", "read_inbox"),
        ("send a message to another agent", "post_receipt"),
        ("erase", "forget"),
        ("delete a user's data", "forget"),
        ("stop the plan", "cancel_execution"),
        ("approve the plan", "confirm_plan"),
        ("try a failed task again", "retry_task"),
        ("give the task back", "release_task"),
        ("history of a task", "task_timeline"),
        ("which workers are online", "list_workers"),
        ("note for my next session", "leave_handoff"),
        ("permissions", "whoami"),
    ],
)
def test_tool_is_found_by_what_it_is_for(query: str, name: str) -> None:
    assert name in [found.name for found in ranked(query, calls.offered())[:3]]


@pytest.mark.parametrize("kind", [Kind.AI, Kind.WORKER])
def test_listed_tool_names_only_listed_ones_or_says_how_to_reach_them(tenant: Tenant, kind: Kind) -> None:
    listing = listed(make_token(tenant, "all", kind, scopes=set(Scope) - FORBIDDEN[kind]))["result"]["tools"]
    shown, every = {tool["name"] for tool in listing}, {declared.name for declared in operations.all_operations()}
    for sentence in re.split(r"[.;:]\s|\\n", json.dumps([tool for tool in listing if tool["name"] != "call_tool"])):
        named = set(re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", sentence)) & every
        assert named <= shown or "call_tool" in sentence, sentence


def test_found_tool_is_called(token: str) -> None:
    found = called(token, "find_tools", query="which principal am I", limit=1)["structuredContent"]["tools"]
    assert [(tool["name"], tool["input_schema"]["properties"]) for tool in found] == [("whoami", {})]

    through = called(token, "call_tool", name="whoami", arguments={})
    assert through["structuredContent"]["principal"] == "everything"
    assert through["structuredContent"] == called(token, "whoami")["structuredContent"]


def test_only_callable_tools_are_found(tenant: Tenant) -> None:
    token = make_token(tenant, scopes=[Scope.MEMORY])
    found = called(token, "find_tools", query="pause a queue")["structuredContent"]["tools"]
    assert "pause_queue" not in {tool["name"] for tool in found}
    assert called(token, "call_tool", name="pause_queue", arguments={"queue": "x"})["isError"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"name": "whoamy"}, "unknown_tool: Unknown tool: whoamy. Did you mean whoami?"),
        ({"name": "call_tool"}, "unknown_tool: Unknown tool: call_tool."),
        ({"name": "whoami", "arguments": {"a": 1}}, "invalid: /a: Unknown field."),
        ({"name": "whoami", "arguments": {"a": "\x00"}}, "unstorable_json"),
        ({"arguments": {}}, "invalid: /name: Field required"),
    ],
)
def test_call_of_a_found_tool_is_refused_as_that_tool_refuses(token: str, arguments: dict[str, Any], text: str) -> None:
    result = called(token, "call_tool", **arguments)
    assert result["isError"]
    assert result["content"][0]["text"].startswith(text)


def test_docs_are_in_step() -> None:
    for name, page in reference.PAGES.items():
        assert (reference.HERE / name).read_text() == page(), "run python -m docs.reference"
