"""The prompts at both ends of a session."""

from typing import Any

import pytest

from apps.principals.models import Tenant
from apps.principals.scopes import Scope
from tests.factories import make_token
from tests.handoff.test_operations import LEFT, Hub
from tests.mcp.raw import modern


@pytest.fixture
def hub(tenant: Tenant) -> Hub:
    return Hub(make_token(tenant))


def prompt(token: str, name: str, **arguments: str) -> str:
    answer: dict[str, Any] = modern("prompts/get", {"name": name, "arguments": arguments}, token).json()
    return "\n".join(message["content"]["text"] for message in answer["result"]["messages"])


def test_a_session_that_says_its_name_takes_over_what_was_left(hub: Hub) -> None:
    hub.leave()
    text = prompt(hub.token, "start_session", session="2026-01-11-api")
    assert "◈ INHERIT" in text
    assert "JWT rotation" in text
    assert "memory_bootstrap:" in text
    assert hub.bodies("another") == []
    assert hub.bodies("2026-01-11-api", again=True) == [LEFT["body"]]


def test_one_that_does_not_only_looks(hub: Hub) -> None:
    hub.leave()
    assert "JWT rotation" in prompt(hub.token, "start_session")
    assert hub.bodies("another") == [LEFT["body"]]


def test_the_prompts_say_what_they_take(hub: Hub) -> None:
    listed = modern("prompts/list", {}, hub.token).json()["result"]["prompts"]
    (begin,) = [one for one in listed if one["name"] == "start_session"]
    assert [(one["name"], one["required"]) for one in begin["arguments"]] == [("session", False)]
    refused = modern("prompts/get", {"name": "start_session", "arguments": {"mood": "good"}}, hub.token).json()
    assert refused["error"]["data"] == {"missing": [], "unknown": ["mood"]}


def test_who_may_not_read_an_inbox_is_told_the_rest(tenant: Tenant) -> None:
    text = prompt(make_token(tenant, scopes=[Scope.MEMORY]), "start_session", session="x")
    assert "inherit:" not in text


def test_the_end_of_a_session_asks_the_questions(hub: Hub) -> None:
    text = prompt(hub.token, "close_session")
    for words in ("◈ HARVEST", "Learning:", "Caution:", "Context:", "Thread:", "leave_handoff", "thank"):
        assert words in text
