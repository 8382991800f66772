"""Every route of the OpenAPI document and every tool of MCP, against a running web process.

Each is asked what it allows and what it forbids, and `/mcp` anything at all. What is
documented of statuses, media types and bodies must hold for each answer. No answer may be a 5xx or a defect.
"""

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import httpx2
import jsonschema_rs
import pytest
import schemathesis
from django.core.management import call_command
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from pytest_django.plugin import DjangoDbBlocker
from schemathesis import Case, GenerationMode
from schemathesis.config import SchemathesisConfig
from schemathesis.schemas import APIOperation, BaseSchema

from apps.core.operations import Operation, Route
from apps.digests.models import Entry
from apps.mcp import calls
from apps.plans.models import Plan
from apps.principals.models import Tenant
from apps.principals.scopes import Kind, Scope
from apps.principals.tenancy import acting_as_system
from apps.receipts.models import Receipt
from apps.tasks.models import Task
from tests.console import world
from tests.factories import make_token
from tests.interfaces.asking import ROUTED, TOOLS, each
from tests.mcp.raw import modern_message
from tests.server import end_server, start_server

# So that there is a database at all; the tests themselves leave it to the web process.
pytestmark = pytest.mark.django_db

LONGEST_WAIT: Final = {"wait": 60, "wait_seconds": 30}
# Cases of each route: drawn from what it allows, from what it forbids, and from the edges of its schema.
# Of 136 routes that makes up to 3,500 of them, or 35,000. To draw the inputs of a tool takes seconds.
CI: Final = (6, 6, 12)
LONG: Final = (60, 60, 120)
TIERS: Final = pytest.mark.parametrize(
    "cases", [pytest.param(CI, marks=pytest.mark.ci, id="ci"), pytest.param(LONG, marks=pytest.mark.long, id="long")]
)

_CONFIG: Final = {
    "generation": {"with-security-parameters": False},
    "checks": {
        "negative_data_rejection": {
            "expected-statuses": ["400", "401", "403", "404", "405", "406", "409", "413", "415", "422", "429"]
        },
        # A schema can't say which references were given out, which cursors, which names of sources.
        "positive_data_acceptance": {
            "expected-statuses": ["2xx", "400", "401", "403", "404", "409", "413", "422", "429"]
        },
    },
}


@dataclass(frozen=True)
class Site:
    """A web process with a tenant in which everything has happened once."""

    url: str
    schema: BaseSchema
    tokens: dict[str, str]
    known: dict[str, str]
    """Path parameters that name something."""


@pytest.fixture(scope="module")
def site(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Site]:
    with django_db_blocker.unblock():
        world.fill()
        with acting_as_system("test"):
            acme = Tenant.objects.get()
            known = {
                "receipt_id": Receipt.objects.earliest("pk").receipt_id,
                "ref": str(Entry.objects.earliest("pk")),
                "plan_id": Plan.objects.earliest("pk").plan_id,
                "task_id": str(Task.objects.earliest("pk")),
                "worker_id": "code-analyzer",
                "subject_id": "USER:alice",
            }
        tokens = {
            "all scopes": make_token(acme, scopes=set(Scope), source_systems=["asyncgate", "github"]),
            "no scope": make_token(acme, "Lee", Kind.SERVICE, scopes=set()),
        }
        process, url = start_server("tests.interfaces.short_streams:application")
        try:
            yield Site(url=url, schema=_document(), tokens=tokens, known=known)
        finally:
            end_server(process)
            call_command("flush", interactive=False, verbosity=0)


def _document() -> BaseSchema:
    written = io.StringIO()
    call_command("spectacular", "--format", "openapi-json", stdout=written)
    return schemathesis.openapi.from_dict(json.loads(written.getvalue()), config=SchemathesisConfig.from_dict(_CONFIG))


# What the web server's parser takes. It refuses longer ones itself, without the form of the API.
LONGEST_URL: Final = 65_535


@TIERS
@pytest.mark.parametrize("route", [one for _, one in ROUTED], ids=lambda one: f"{one.method} {one.path}")
def test_a_route_answers_as_its_document_says(site: Site, route: Route, cases: tuple[int, int, int]) -> None:
    operation = site.schema[route.path][route.method]
    allowed, forbidden, edges = cases
    for token in site.tokens.values():
        _draw(site, operation, GenerationMode.POSITIVE, allowed, token)
        allowed = max(1, allowed // 4)  # who holds no scope is refused whatever it says
    _draw(site, operation, GenerationMode.NEGATIVE, forbidden, site.tokens["all scopes"])
    for case in _edges(site.schema, operation, edges):
        _check(site, case, site.tokens["all scopes"])


def _drawing(most: int, **more: Any) -> settings:
    checks = list(HealthCheck)
    return settings(
        max_examples=most,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=checks,
        **more,
    )


def _draw(site: Site, operation: APIOperation[Any, Any, Any, Any], mode: GenerationMode, most: int, token: str) -> None:
    turns = iter(range(10_000_000))

    @_drawing(most)
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Case[Any]) -> None:
        if mode is GenerationMode.POSITIVE and next(turns) % 2:
            for name in set(case.path_parameters or {}) & set(site.known):
                case.path_parameters[name] = site.known[name]
        _check(site, case, token)

    try:
        ask()
    except Unsatisfiable:
        # What takes nothing can be asked nothing wrong.
        assert mode is GenerationMode.NEGATIVE
        assert not operation.path_parameters


def _edges(schema: BaseSchema, operation: APIOperation[Any, Any, Any, Any], most: int) -> list[Case[Any]]:
    """Up to so many of the schema's edges, spread over all of them."""
    cases = list(
        schema.iter_coverage_cases(
            operation,
            generation_modes=list(GenerationMode),
            generation_config=schema.config.generation_for(operation=operation),
        )
    )
    return cases[:: max(1, len(cases) // most)][:most]


def _check(site: Site, case: Case[Any], token: str) -> None:
    for asked in (case.body, case.query):
        _shorten(asked)
    answer = case.call(base_url=site.url, headers={"Authorization": f"Bearer {token}"}, timeout=60)
    if len(answer.request.url or "") > LONGEST_URL:
        assert answer.status_code == 400
    else:
        case.validate_response(answer)


def _shorten(asked: Any) -> None:
    """Nothing that is waited for would come. A wait that is no valid one is still refused."""
    for name in LONGEST_WAIT.keys() & asked.keys() if isinstance(asked, dict) else ():
        if _is_a_wait(asked[name], LONGEST_WAIT[name]):
            asked[name] = 0


def _is_a_wait(seconds: Any, longest: int) -> bool:
    """Whether this is an allowed wait, also as text of an address."""
    try:
        return not isinstance(seconds, bool) and 0 < float(seconds) <= longest
    except (TypeError, ValueError):
        return False


@pytest.fixture(scope="module")
def tools() -> BaseSchema:
    """The tools as routes of a document, so that their inputs can be drawn as those of routes are."""
    paths, shared = dict[str, Any](), dict[str, Any]()
    for one in TOOLS:
        takes = json.loads(json.dumps(calls.describe([one]).input_schema))
        shared |= takes.pop("$defs", {})
        body = {"required": True, "content": {"application/json": {"schema": takes}}}
        paths[f"/{one.name}"] = {"post": {"requestBody": body, "responses": {"200": {"description": "Done."}}}}
    document = {"openapi": "3.1.0", "info": {"title": "Tools", "version": "1"}, "$defs": shared, "paths": paths}
    return schemathesis.openapi.from_dict(document, config=SchemathesisConfig.from_dict(_CONFIG))


@pytest.mark.long
@each(TOOLS)
def test_a_tool_answers_as_its_schema_says(site: Site, tools: BaseSchema, declared: Operation) -> None:
    token, turns = site.tokens["all scopes"], iter(range(10_000_000))
    said = jsonschema_rs.validator_for(calls.describe([declared]).output_schema or {})
    for mode, most in zip(GenerationMode, LONG, strict=False):

        @_drawing(most, deadline=None)
        @given(case=tools[f"/{declared.name}"]["POST"].as_strategy(generation_mode=mode))
        def ask(case: Case[Any]) -> None:
            given = case.body
            assume(not isinstance(given, bytes))  # which is no JSON
            _shorten(given)
            if isinstance(given, dict) and next(turns) % 2:
                given |= {name: site.known[name] for name in given.keys() & site.known.keys()}
            told = _post(site, *modern_message("tools/call", {"name": declared.name, "arguments": given}, token))
            if not told.get("result", {"isError": True}).get("isError"):
                said.validate(told["result"].get("structuredContent"))

        ask()


_ANYTHING: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
_METHODS: Final = "tools/call tools/list resources/read resources/list prompts/get completion/complete initialize ping "
_MEMBERS: Final = "name arguments uri cursor ref argument level protocolVersion capabilities taskId notifications _meta"


@TIERS
def test_any_message_is_answered(site: Site, cases: tuple[int, int, int]) -> None:
    """Well-formed or not, of both generations of the protocol."""
    methods = [*_METHODS.split(), "server/discover", "subscriptions/listen", "tasks/get", "tasks/cancel", "no/such"]

    @_drawing(20 * cases[0], deadline=None)
    @given(
        method=st.sampled_from(methods) | st.text(max_size=10),
        params=st.dictionaries(st.sampled_from(_MEMBERS.split()), _ANYTHING, max_size=5) | _ANYTHING,
        number=st.integers() | _ANYTHING,
        revision=st.sampled_from(["modern", "2025-11-25", "2099-01-01"]),
    )
    def ask(method: str, params: Any, number: Any, revision: str) -> None:
        if revision == "modern":
            body, headers = modern_message(
                method, params if isinstance(params, dict) else {}, site.tokens["all scopes"]
            )
        else:
            _, headers = modern_message("ping", {}, site.tokens["all scopes"])
            headers["MCP-Protocol-Version"] = revision
            body = json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode()
        _post(site, body, headers)

    ask()


def _post(site: Site, body: bytes, headers: dict[str, str]) -> dict[str, Any]:
    """What is answered, if it is no stream."""
    encoded = {name.encode(): value.encode(errors="replace") for name, value in headers.items()}
    with httpx2.stream("POST", f"{site.url}/mcp", content=body, headers=encoded, timeout=60) as answer:
        assert answer.status_code < 500, answer.read()
        if not answer.headers.get("content-type", "").startswith("application/json"):
            return {}
        told: dict[str, Any] = json.loads(answer.read())
    refusal = told.get("result", {}).get("_meta", {}).get("gatehouse/refusal", {})
    assert (told.get("error", {}).get("code"), refusal.get("code")) not in {(-32603, None), (None, "defect")}, told
    return told
