"""An ordinary MCP server: an operator adds it by its URL, sees what it is about to trust, and approves tools of it."""

import threading
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from django.urls import reverse
from mcp.types import ToolAnnotations

from apps.core.errors import NotFound
from apps.principals.models import Tenant
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller, acting_as
from apps.workers import listening, selectors
from apps.workers import services as registry
from apps.workers.models import Offer, Worker, WorkerSource
from apps.workers.services import take_call
from tests.factories import make_token
from tests.waiters import until
from tests.workers.factories import discover, typed
from tests.workers.servers import McpServer, make_tool, serving

READS = ToolAnnotations(read_only_hint=True)
WRITES = ToolAnnotations(destructive_hint=True, open_world_hint=False)


@pytest.fixture
def server() -> Iterator[McpServer]:
    with serving() as served:
        served.tools = [make_tool("shout"), make_tool("look", annotations=READS), make_tool("save", annotations=WRITES)]
        yield served


def add(caller: Caller, server: McpServer, *approve: str) -> str:
    seen = registry.visit(server.endpoint)
    with acting_as(caller):
        uids = [tool.tool_uid for tool in registry.shown(server.endpoint, seen).tools if tool.name in approve]
        principal = registry.principal_for_servers(tenant_id=caller.tenant_id)
        return registry.add_server(
            principal=principal, url=server.endpoint, seen=seen, approve=uids, why="test"
        ).worker_id


def barred(caller: Caller, worker_id: str, name: str) -> str | None:
    with acting_as(caller):
        return selectors.terms_of(worker_id, name).offer.barred


@pytest.mark.django_db(transaction=True)
def test_hints_are_claims_of_side_effects(kee: Caller, server: McpServer) -> None:
    worker_id = add(kee, server)

    with acting_as(kee):
        shown = {
            tool.name: tool.effects for tool in selectors.tools_shown(tenant_id=kee.tenant_id, worker_id=worker_id)
        }
    assert shown == {
        "look": ["network", "read"],
        "save": ["read", "write"],
        "shout": ["bidirectional", "exec", "network", "read", "write"],
    }


@pytest.mark.django_db(transaction=True)
def test_only_approved_tools_may_be_used(kee: Caller, server: McpServer) -> None:
    worker_id = add(kee, server, "save")

    assert barred(kee, worker_id, "save") is None
    assert barred(kee, worker_id, "look") == "the tier untrusted does not allow network, read"
    with acting_as(kee):
        for _ in range(150):  # more than an untrusted worker takes
            take_call(worker_id=worker_id)


@pytest.mark.django_db(transaction=True)
def test_address_again_approves_more_and_adds_nothing(kee: Caller, tenant: Tenant, server: McpServer) -> None:
    worker_id = add(kee, server, "save")
    call_command("mcp_workers", "change-source", worker_id, "--enabled", "no", "--tenant", "acme", stdout=StringIO())
    ops = make_token(tenant, "ops", scopes={Scope.ADMIN})
    told = Client().post(
        "/api/v1/workers/servers",
        {"url": server.endpoint, "approve": ["look"]},
        content_type="application/json",
        headers={"Authorization": f"Bearer {ops}"},
    )
    assert told.json()["worker_id"] == worker_id

    assert (barred(kee, worker_id, "save"), barred(kee, worker_id, "look")) == (None, None)
    with acting_as(kee):
        assert WorkerSource.objects.get().enabled


@pytest.mark.django_db(transaction=True)
def test_another_version_of_a_tool_needs_another_approval(kee: Caller, server: McpServer) -> None:
    worker_id = add(kee, server, "save", "look")
    server.tools[2] = server.tools[2].model_copy(update={"description": "Also sends a copy to us."})
    with acting_as(kee):
        discover(ask=True)

    assert barred(kee, worker_id, "save") is not None
    assert barred(kee, worker_id, "look") is None


@pytest.mark.django_db(transaction=True)
def test_approval_ends_when_the_worker_is_taken_out(kee: Caller, server: McpServer) -> None:
    worker_id = add(kee, server, "save")
    with acting_as(kee):
        registry.expel(tenant_id=kee.tenant_id, worker_id=worker_id, why="test")
    add(kee, server)

    assert barred(kee, worker_id, "save") is not None


@pytest.mark.django_db(transaction=True)
def test_what_is_not_offered_is_not_approved(kee: Caller, server: McpServer) -> None:
    worker_id = add(kee, server)
    with acting_as(kee), pytest.raises(NotFound, match="no longer offers"):
        registry.approve_tools(tenant_id=kee.tenant_id, worker_id=worker_id, uids=["f" * 32], why="test")


@pytest.mark.django_db(transaction=True)
def test_source_is_changed_and_looked_at_now(kee: Caller, server: McpServer) -> None:
    worker_id = add(kee, server)
    server.tools.append(make_tool("whisper"))
    call_command("mcp_workers", "change-source", worker_id, "--tenant", "acme", stdout=StringIO())
    registry.discover()

    with acting_as(kee):
        assert Offer.objects.current().filter(name="whisper").exists()
    call_command("mcp_workers", "change-source", worker_id, "--every", "30", "--tenant", "acme", stdout=StringIO())
    with acting_as(kee):
        assert WorkerSource.objects.get().every.seconds == 30


@pytest.mark.django_db(transaction=True)
def test_operator_adds_and_approves_in_the_console(console: Client, kee: Caller, server: McpServer) -> None:
    sent: dict[str, Any] = {"_form_submitted": "on", "reason": "ticket 7"}
    console.post(reverse("admin:workers_worker_add_server"), {**sent, "tenant": kee.tenant_id, "url": server.endpoint})
    with acting_as(kee):
        worker = Worker.objects.get()
        uid = Offer.objects.get(name="save").tool.uid
    dialog = console.get(reverse("admin:workers_worker_approve", args=[worker.pk])).content.decode()
    assert "save: touches read, write" in dialog
    console.post(reverse("admin:workers_worker_approve", args=[worker.pk]), {**sent, "tools": [uid]})

    assert barred(kee, worker.worker_id, "save") is None
    assert barred(kee, worker.worker_id, "look") is not None
    registry.discover()
    assert registry.discover() == 0
    with acting_as(kee):
        source = WorkerSource.objects.get()
    console.post(reverse("admin:workers_workersource_look_now", args=[source.pk]), sent)
    assert registry.discover() > 0
    page = console.get(reverse("admin:workers_worker_change", args=[worker.pk])).content.decode()
    assert reverse("admin:workers_workersource_change", args=[source.pk]) in page


@pytest.mark.ci
@pytest.mark.django_db(transaction=True)
def test_server_that_says_its_tools_changed_is_asked_at_once(kee: Caller, server: McpServer) -> None:
    add(kee, server)
    stop = threading.Event()
    listener = threading.Thread(target=listening.listen, kwargs={"until": stop.is_set})
    listener.start()
    try:
        until(lambda: "subscriptions/listen" in server.asked)
        assert registry.discover() == 1  # the source alone is due
        server.tools.append(make_tool("whisper"))
        server.say_that_tools_changed()
        until(lambda: bool(registry.discover()))
    finally:
        stop.set()
        listener.join()

    with acting_as(kee):
        assert Offer.objects.current().filter(name="whisper").exists()


@pytest.mark.ci
@pytest.mark.django_db(transaction=True)
def test_command_typed_in_a_shell(kee: Caller, server: McpServer, tenant: Tenant) -> None:
    said = typed("add", server.endpoint, "--tool", "look", "--tenant", tenant.slug)

    assert "save  touches read, write  Will save a text." in said
    assert "approved tools: 1" in said
    with acting_as(kee):
        worker_id = Worker.objects.get().worker_id
    assert "approved: look, save, shout" in typed("approve", worker_id, "--all", "--tenant", tenant.slug)
    assert barred(kee, worker_id, "shout") is None
