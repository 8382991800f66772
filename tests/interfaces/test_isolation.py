"""Two tenants never meet: whatever one of them asks, by any name that the other uses, no word of the other comes back.

The registry is the list of what is asked. Both tenants use the same names; every text of the first holds a canary.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

import pytest
from django.test import Client

from apps.core import json_schema
from apps.core.operations import Operation, Route
from apps.digests.models import Entry
from apps.memory.models import Item, Observation
from apps.plans.models import Plan
from apps.principals.models import Tenant
from apps.principals.scopes import Scope
from apps.principals.tenancy import acting_as_system
from apps.receipts.models import Receipt
from apps.tasks.models import Task
from tests.factories import make_token
from tests.interfaces.asking import ROUTED, TOOLS
from tests.interfaces.test_same_answers import undone
from tests.mcp.raw import modern
from tests.memory.subjects import ALICE
from tests.memory.test_forgetting import CANARY, plant

pytestmark = pytest.mark.usefixtures("own_artifacts")

# What takes its time by being asked.
SLOW: Final = {"wait_seconds", "wait", "patience"}
# However it is written.
THE_CANARY: Final = re.compile(r"(?i)zanzibar.?quokka")


@dataclass(frozen=True)
class Two:
    """A token of the tenant that asks, and what the other's things are called."""

    token: str
    known: Mapping[str, Any]


@pytest.fixture
def two(db: None) -> Two:
    plant()
    plant("globex", canary="harmless")
    with acting_as_system("test"):
        theirs = {"tenant__slug": "acme"}
        task = Task.objects.filter(**theirs).latest("pk")
        receipt = Receipt.objects.filter(**theirs, title__contains=CANARY).latest("pk")
        entry = Entry.objects.filter(**theirs).latest("pk")
        known = {
            "subject_id": ALICE,
            "subject": ALICE,
            "subject_ids": [ALICE],
            "item": f"item:{Item.objects.filter(**theirs).latest('pk').pk}",
            "supersedes": Observation.objects.filter(**theirs).latest("pk").ref,
            "receipt_id": receipt.receipt_id,
            "id": receipt.receipt_id,
            "ref": str(entry),
            "through": f"{entry}@{entry.sequence}",
            "token": f"{entry}@{entry.sequence}",
            "task_id": str(task),
            "task_ids": [str(task)],
            "plan_id": Plan.objects.filter(**theirs).latest("pk").plan_id,
            "worker_id": "code-analyzer",
            "ai_name": "Kee",
            "principal_ai": "Kee",
            "recipient_ai": "Kee",
            "tenant_id": "TENANT:acme",
            "query": CANARY.split("-")[1],
            "q": CANARY.split("-")[1],
            "filters": {"subject_id": ALICE},
            "reference": receipt.receipt_id,
            "evidence_observation_ids": [Observation.objects.filter(**theirs).latest("pk").pk],
        }
    globex = make_token_of("globex")
    return Two(token=globex, known=known)


def make_token_of(slug: str) -> str:
    with acting_as_system("test"):
        tenant = Tenant.objects.get(slug=slug)
    return make_token(tenant, "Kee", scopes=set(Scope), source_systems=["github", "asyncgate"])


def questions(declared: Operation, known: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Inputs that name the other's things: all that the operation takes, the least, and each name by itself."""
    schema = json_schema.of(declared.input, "validation")
    members: Mapping[str, Any] = schema["properties"]
    needed = set(schema.get("required", ()))
    named = {name: known[name] for name in members if name in known}
    least = {name: known.get(name, _value(members[name])) for name in needed}
    yield {**least, **named}
    yield least
    for name, value in named.items():
        yield {**least, name: value}


def _value(schema: Mapping[str, Any]) -> Any:
    """Something that a schema may allow."""
    for choice in (*schema.get("enum", ()), *schema.get("anyOf", ())):
        return _value(choice) if isinstance(choice, dict) else choice
    match schema.get("type"):
        case "integer" | "number":
            return max(1, schema.get("minimum", 1))
        case "boolean":
            return True
        case "array":
            return [_value(schema.get("items", {}))] if schema.get("minItems") else []
        case "object":
            return {name: _value(schema["properties"][name]) for name in schema.get("required", ())}
        case _:
            return "x"


def ask_rest(route: Route, given: Mapping[str, Any], token: str) -> str:
    path = re.sub(r"{(\w+)}", lambda match: str(given.get(match[1], "x")), route.path)
    rest = {name: value for name, value in given.items() if name not in route.parameters}
    headers = {"Authorization": f"Bearer {token}"}
    if route.method in {"GET", "DELETE"}:
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in rest.items()}
        answer = Client().generic(route.method, f"{path}?{urlencode(texts)}", headers=headers)
    else:
        answer = Client().generic(
            route.method, path, json.dumps(rest), content_type="application/json", headers=headers
        )
    assert answer.status_code < 500
    if getattr(answer, "streaming", False):
        return str(dict(answer.headers))
    return answer.content.decode() + str(dict(answer.headers))


def ask_tool(declared: Operation, given: Mapping[str, Any], token: str) -> str:
    return modern("tools/call", {"name": declared.name, "arguments": dict(given)}, token).content.decode()


def leaks(answer: str, given: Mapping[str, Any]) -> bool:
    """Whether an answer holds the canary. No question does."""
    assert not THE_CANARY.search(json.dumps(given))
    return THE_CANARY.search(answer) is not None


def asked_of(declared: Operation, two: Two) -> Iterator[dict[str, Any]]:
    for given in questions(declared, two.known):
        yield {name: value for name, value in given.items() if name not in SLOW}


@pytest.mark.ci
def test_no_route_answers_with_a_word_of_another_tenant(two: Two) -> None:
    leaking = []
    for declared, route in ROUTED:
        for given in asked_of(declared, two):
            with undone():
                if leaks(ask_rest(route, given, two.token), given):
                    leaking.append((route.method, route.path, given))
    assert leaking == []


@pytest.mark.ci
def test_no_tool_answers_with_a_word_of_another_tenant(two: Two) -> None:
    leaking = []
    for declared in TOOLS:
        for given in asked_of(declared, two):
            with undone():
                if leaks(ask_tool(declared, given, two.token), given):
                    leaking.append((declared.name, given))
    assert leaking == []


@pytest.mark.ci
def test_the_canary_is_there_for_its_own_tenant(two: Two) -> None:
    """Else the test above could not fail."""
    token, seen = make_token_of("acme"), set()
    for declared, route in ROUTED:
        if route.method != "GET" or declared.streams:
            continue
        for given in questions(declared, two.known):
            with undone():
                if leaks(ask_rest(route, given, token), given):
                    seen.add(declared.name)
    assert {
        "export_subject",
        "format_envelope_for_llm",
        "get_memory_envelope",
        "get_plan",
        "get_subject",
        "list_memory_items",
        "memory_recall",
        "read_inbox",
    } <= seen


@pytest.mark.ci
def test_no_resource_shows_a_word_of_another_tenant(two: Two) -> None:
    known = two.known
    for uri in (
        f"envelope://{ALICE}", f"envelope://{ALICE.replace(':', '%3A')}", f"receipt://{known['receipt_id']}",
        f"task://{known['task_id']}", f"task://{known['task_id']}/result", f"plan://{known['plan_id']}", "inbox://me",
        f"inbox://me/entries/{known['ref']}",
    ):  # fmt: skip
        with undone():
            assert not leaks(modern("resources/read", {"uri": uri}, two.token).content.decode(), {})
