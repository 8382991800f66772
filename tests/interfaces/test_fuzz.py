"""Every route of the OpenAPI document and every tool of MCP, against a running web process.

Each is asked what it allows and what it forbids, and `/mcp` anything at all. What is
documented of statuses, media types and bodies must hold for each answer. No answer may be a 5xx or a defect.
"""

import io
import json
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import count, takewhile
from typing import Any, Final

import httpx2
import jsonschema_rs
import pytest
import schemathesis
from django.core.management import call_command
from django.db import connection
from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky, Unsatisfiable
from pytest_django.plugin import DjangoDbBlocker
from schemathesis import Case, GenerationMode
from schemathesis.config import SchemathesisConfig
from schemathesis.core.failures import FailureGroup
from schemathesis.core.transport import Response
from schemathesis.schemas import APIOperation, BaseSchema

from apps.core.operations import Operation, Route
from apps.delivery.models import Target
from apps.digests.models import Entry
from apps.mcp import calls
from apps.memory.models import Subject
from apps.plans.models import Plan
from apps.principals.models import Principal, Tenant
from apps.principals.scopes import Kind, Scope
from apps.principals.tenancy import acting_as_system
from apps.receipts.models import Receipt
from apps.tasks.models import Queue, Schedule, Task, TaskType
from apps.workers.models import ToolVersion, Worker
from tests.console import world
from tests.factories import make_token
from tests.interfaces.asking import ROUTED, TOOLS, each
from tests.mcp.raw import modern_message
from tests.server import end_server, start_server

# So that there is a database at all; the tests themselves leave it to the web process.
pytestmark = pytest.mark.django_db

ALL, NONE = "all scopes", "no scope"
# Cases of each route: drawn from what it allows, from what it forbids, and from the edges of its schema.
CI: Final = (12, 4, 9)
LONG: Final = (120, 40, 90)
# What reads first, what ends something last.
ROUTES: Final = sorted((one for _, one in ROUTED), key=lambda one: (one.method != "GET", one.method == "DELETE"))
TIERS: Final = pytest.mark.parametrize(
    "cases", [pytest.param(CI, marks=pytest.mark.ci, id="ci"), pytest.param(LONG, marks=pytest.mark.long, id="long")]
)

_CONFIG: Final = {
    "generation": {"with-security-parameters": False},
    "checks": {
        "negative_data_rejection": {
            "expected-statuses": ["400", "403", "404", "405", "406", "409", "413", "415", "422", "429"]
        },
        # A schema can't say which references were given out, which cursors, which names of sources.
        "positive_data_acceptance": {"expected-statuses": ["2xx", "400", "403", "404", "409", "413", "422", "429"]},
    },
}


_MODELS: Final[dict[str, Any]] = {
    "receipt_id": Receipt,
    "ref": Entry,
    "plan_id": Plan,
    "task_id": Task,
    "worker_id": Worker,
    "target": Target,
    "subject_id": Subject,
    "queue": Queue,
    "task_type": TaskType,
    "tool_name": ToolVersion,
    "name": Schedule,
    "recipient_ai": Principal,
    "delegate": Principal,
    "delegate_id": Principal,
}
_REFERENCE: Final = re.compile(r"_(id|ai|token|key|pointer)$|^(ref|name|target|queue|task_type|digest|next|cursor)$")


@dataclass
class Site:
    """A web process with a tenant in which everything has happened once."""

    url: str
    schema: BaseSchema
    acme: Tenant
    known: dict[str, deque[str]]
    """What exists, by the name of the member or parameter that names it; more of it with each answer."""
    tokens: dict[str, str] = field(default_factory=dict)
    asked: Counter[int] = field(default_factory=Counter)
    """How many answers there were of each status."""

    def ask(self, who: str, call: Callable[[dict[str, str]], Any]) -> Any:
        """An answer to whom may call. A case may have revoked the token: once it is replaced, none is refused."""
        answer = call(self._carried(who))
        if answer.status_code == HTTPStatus.UNAUTHORIZED:
            del self.tokens[who]
            answer = call(self._carried(who))
        assert answer.status_code != HTTPStatus.UNAUTHORIZED
        self.asked[answer.status_code] += 1
        if _is_json(answer):
            self._learn(answer.json())
        return answer

    def call(self, who: str, case: Case[Any]) -> Any:
        return self.ask(who, lambda headers: case.call(base_url=self.url, headers=headers, timeout=60))

    def _learn(self, told: Any) -> None:
        for name, value in (
            told.items() if isinstance(told, dict) else enumerate(told if isinstance(told, list) else ())
        ):
            if isinstance(value, str) and value and _REFERENCE.search(str(name)):
                self.known.setdefault(str(name), deque(maxlen=8)).append(value)
            self._learn(value)

    def refer(self, given: Any, turn: int) -> None:
        """Put what exists in place of the references of a request: its newest, or the one before that."""
        for name, value in (
            given.items() if isinstance(given, dict) else enumerate(given if isinstance(given, list) else ())
        ):
            there = self.known.get(str(name)) if isinstance(value, str) else None
            if there and (name, there[-1]) != ("name", "Kee"):
                given[name] = there[-1 - turn % min(2, len(there))]
            self.refer(value, turn)

    def _carried(self, who: str) -> dict[str, str]:
        if who not in self.tokens:
            # On a thread, and so on a connection, of its own: a test's transaction is never committed.
            with ThreadPoolExecutor(1) as thread:
                self.tokens[who] = thread.submit(self._issue, who).result()
        return {"Authorization": f"Bearer {self.tokens[who]}"}

    def _issue(self, who: str) -> str:
        with closing(connection):
            if who == ALL:
                return make_token(self.acme, scopes=set(Scope), source_systems=["asyncgate", "github"])
            return make_token(self.acme, "Lee", Kind.SERVICE, scopes=set())


@pytest.fixture(scope="module")
def site(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Site]:
    with django_db_blocker.unblock():
        world.fill()
        with acting_as_system("test"):
            acme = Tenant.objects.get()
            known = {name: deque([str(model.objects.earliest("pk"))], maxlen=8) for name, model in _MODELS.items()}
        process, url = start_server("tests.interfaces.short_streams:application")
        try:
            yield Site(url=url, schema=_document(), acme=acme, known=known)
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
@pytest.mark.parametrize("route", ROUTES, ids=lambda one: f"{one.method} {one.path}")
def test_a_route_answers_as_its_document_says(
    site: Site, route: Route, cases: tuple[int, int, int], record_property: Callable[[str, object], None]
) -> None:
    operation, before = site.schema[route.path][route.method], site.asked.copy()
    allowed, forbidden, edges = cases
    _draw(site, operation, GenerationMode.POSITIVE, allowed, ALL)
    # Who holds no scope is refused whatever it says.
    _draw(site, operation, GenerationMode.POSITIVE, max(1, allowed // 4), NONE)
    _draw(site, operation, GenerationMode.NEGATIVE, forbidden, ALL)
    for case in _edges(site.schema, operation, edges):
        _hold(case, site.call(ALL, case))
    record_property("asked", dict(site.asked - before))


@TIERS
def test_chains_of_calls_answer_as_the_document_says(
    site: Site, cases: tuple[int, int, int], record_property: Callable[[str, object], None]
) -> None:
    """Links that schemathesis finds in the document lead from what an answer names to the routes that take it."""
    before, broken = site.asked.copy(), list[FailureGroup]()

    class Chain(_document().as_state_machine()):  # type: ignore[misc]  # a class that is made of the document
        def call(self, case: Case[Any], **_: Any) -> Response:
            if case.meta and case.meta.generation.mode is GenerationMode.POSITIVE and site.asked.total() % 4:
                site.refer(case.body, 0)
            return Response.from_any(site.call(ALL, case))

        def validate_response(self, response: Response, case: Case[Any], **_: Any) -> None:
            try:
                _hold(case, response, recorder=self.recorder)
            except FailureGroup as failure:  # raised, it would be asked again, of a site that has changed since
                broken.append(failure)

    for number in takewhile(lambda _: (site.asked - before).total() < 25 * cases[0], count()):
        with suppress(Flaky):  # where one chain begins as another did, their answers may differ
            seed(number)(Chain).run(settings=_drawing(9, stateful_step_count=12))
    record_property("asked", dict(site.asked - before))
    if broken:
        raise BaseExceptionGroup("Not as documented", broken)


def _drawing(most: int, **more: Any) -> settings:
    checks = list(HealthCheck)
    return settings(max_examples=most, database=None, phases=[Phase.generate], suppress_health_check=checks, **more)


def _draw(site: Site, operation: APIOperation[Any, Any, Any, Any], mode: GenerationMode, most: int, who: str) -> None:
    turns = iter(range(10_000_000))

    @_drawing(most)
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Case[Any]) -> None:
        if mode is GenerationMode.POSITIVE and (turn := next(turns)) % 4:
            for part in (case.path_parameters, case.query, case.body):
                site.refer(part, turn)
        _hold(case, site.call(who, case))

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


def _hold(case: Case[Any], answer: Any, **more: Any) -> None:
    if len(answer.request.url or "") > LONGEST_URL:
        assert answer.status_code == 400
    else:
        case.validate_response(answer, **more)


@pytest.fixture(scope="module")
def tools() -> BaseSchema:
    """The tools as routes of a document, so that their inputs can be drawn as those of routes are."""
    paths, shared = dict[str, Any](), dict[str, Any]()
    for one in TOOLS:
        takes = json.loads(json.dumps(calls.describe(one).input_schema))
        shared |= takes.pop("$defs", {})
        body = {"required": True, "content": {"application/json": {"schema": takes}}}
        paths[f"/{one.name}"] = {"post": {"requestBody": body, "responses": {"200": {"description": "Done."}}}}
    document = {"openapi": "3.1.0", "info": {"title": "Tools", "version": "1"}, "$defs": shared, "paths": paths}
    return schemathesis.openapi.from_dict(document, config=SchemathesisConfig.from_dict(_CONFIG))


@TIERS
@each(TOOLS)
def test_a_tool_answers_as_its_schema_says(
    site: Site,
    tools: BaseSchema,
    declared: Operation,
    cases: tuple[int, int, int],
    record_property: Callable[[str, object], None],
) -> None:
    turns, before = iter(range(10_000_000)), site.asked.total()
    said = jsonschema_rs.validator_for(calls.describe(declared).output_schema or {})
    for mode, most in zip(GenerationMode, cases, strict=False):

        @_drawing(most // 4)
        @given(case=tools[f"/{declared.name}"]["POST"].as_strategy(generation_mode=mode))
        def ask(case: Case[Any]) -> None:
            given = case.body
            assume(not isinstance(given, bytes))  # which is no JSON
            if (turn := next(turns)) % 4:
                site.refer(given, turn)
            told = _post(site, *modern_message("tools/call", {"name": declared.name, "arguments": given}, None))
            if not told.get("result", {"isError": True}).get("isError"):
                said.validate(told["result"].get("structuredContent"))

        ask()
    record_property("messages", site.asked.total() - before)


_PLAIN: Final = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
_ANYTHING: Final[st.SearchStrategy[Any]] = st.deferred(
    lambda: _PLAIN | st.lists(_ANYTHING, max_size=4) | st.dictionaries(st.text(max_size=8), _ANYTHING, max_size=4)
)
_METHODS: Final = "tools/call tools/list resources/read resources/list prompts/get completion/complete initialize ping "
_MEMBERS: Final = "name arguments uri cursor ref argument level protocolVersion capabilities taskId notifications _meta"


@TIERS
def test_any_message_is_answered(
    site: Site, cases: tuple[int, int, int], record_property: Callable[[str, object], None]
) -> None:
    """Well-formed or not, of both generations of the protocol."""
    before = site.asked.total()
    methods = [*_METHODS.split(), "server/discover", "subscriptions/listen", "tasks/get", "tasks/cancel", "no/such"]

    @_drawing(10 * cases[0])
    @given(
        method=st.sampled_from(methods) | st.text(max_size=10),
        params=st.dictionaries(st.sampled_from(_MEMBERS.split()), _ANYTHING, max_size=5) | _ANYTHING,
        number=st.integers() | _ANYTHING,
        revision=st.sampled_from(["modern", "2025-11-25", "2099-01-01"]),
    )
    def ask(method: str, params: Any, number: Any, revision: str) -> None:
        if revision == "modern":
            body, headers = modern_message(method, params if isinstance(params, dict) else {}, None)
        else:
            _, headers = modern_message("ping", {}, None)
            headers["MCP-Protocol-Version"] = revision
            body = json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode()
        _post(site, body, headers)

    ask()
    record_property("messages", site.asked.total() - before)


def _post(site: Site, body: bytes, headers: dict[str, str]) -> dict[str, Any]:
    """What is answered, if it is no stream."""
    assume(all(map(str.isprintable, headers.values())))  # no client sends others

    def call(more: dict[str, str]) -> httpx2.Response:
        encoded = {name.encode(): value.encode(errors="replace") for name, value in {**headers, **more}.items()}
        with httpx2.stream("POST", f"{site.url}/mcp", content=body, headers=encoded, timeout=60) as answer:
            if answer.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR or _is_json(answer):
                answer.read()
        return answer

    answer = site.ask(ALL, call)
    assert answer.status_code < HTTPStatus.INTERNAL_SERVER_ERROR, answer.text
    if not _is_json(answer):
        return {}
    told: dict[str, Any] = answer.json()
    refusal = told.get("result", {}).get("_meta", {}).get("gatehouse/refusal", {})
    assert (told.get("error", {}).get("code"), refusal.get("code")) not in {(-32603, None), (None, "defect")}, told
    return told


def _is_json(answer: Any) -> bool:
    return str(answer.headers.get("content-type", "")).startswith("application/json")
