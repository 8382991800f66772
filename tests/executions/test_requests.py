"""One call from a request in plain words to its answer in the inbox, over an ordinary MCP server that an operator approved."""

from collections.abc import Iterator

import pytest
from django.test import Client
from mcp.types import Tool, ToolAnnotations

from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as
from apps.workers.services import discovery
from tests.factories import make_token
from tests.workers.servers import McpServer, serving

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
RESULT = {"type": "object", "properties": {"result": {"type": "string"}}}


def make_tool(name: str, description: str, *, reads: bool) -> Tool:
    hints = ToolAnnotations(read_only_hint=reads)
    return Tool(name=name, description=description, input_schema=CITY, output_schema=RESULT, annotations=hints)


@pytest.fixture
def server(kee: Caller) -> Iterator[McpServer]:
    with serving(name="Town") as served:
        served.structured = {"result": "It is sunny."}
        served.tools = [
            make_tool("get_weather", "Get the current weather in a city.", reads=True),
            make_tool("close_city", "Close a city for cars.", reads=False),
        ]
        seen = discovery.visit(served.endpoint)
        with acting_as(kee):
            principal = discovery.principal_for_servers(tenant_id=kee.tenant_id)
            uids = [tool.tool_uid for tool in discovery.shown(served.endpoint, seen).tools]
            discovery.add_server(principal=principal, url=served.endpoint, seen=seen, approve=uids, why="test")
        yield served


@pytest.mark.django_db(transaction=True)
def test_reading_request_is_answered_in_one_call_and_in_the_inbox(
    kee: Caller, tenant: Tenant, server: McpServer
) -> None:
    headers = {"Authorization": f"Bearer {make_token(tenant, 'Kee')}"}
    asked = {"intent": "What is the weather in Vienna?"}
    told = Client().post("/api/v1/requests", asked, content_type="application/json", headers=headers).json()

    assert told["execution"]["status"] == "complete"
    assert told["execution"]["direct_results"][0]["result"] == "It is sunny."
    entry = Client().get("/api/v1/inbox", headers=headers).json()["entries"][-1]
    assert (entry["title"], entry["summary"]) == ("Plan complete: What is the weather in Vienna?", "It is sunny.")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("intent", "more"), [("Close Vienna for cars", {}), ("What is the weather in Vienna?", {"confirm_reads": False})]
)
def test_guess_is_not_acted_on_without_a_confirmation(
    kee: Caller, tenant: Tenant, server: McpServer, intent: str, more: dict[str, bool]
) -> None:
    headers = {"Authorization": f"Bearer {make_token(tenant, 'Kee')}"}
    told = Client().post(
        "/api/v1/requests", {"intent": intent, **more}, content_type="application/json", headers=headers
    )

    assert told.json()["execution"] is None
    assert told.json()["status"] != "ready"
    assert not {"get_weather", "close_city"} & set(server.asked)
