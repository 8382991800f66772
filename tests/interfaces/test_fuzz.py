"""Every route of the OpenAPI document, with what it allows and with what it forbids, against a running web process.

What the document says of statuses, media types and bodies must hold for each answer; no answer may be a 5xx.
"""

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest
import schemathesis
from django.core.management import call_command
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from pytest_django.plugin import DjangoDbBlocker
from schemathesis import Case, GenerationMode
from schemathesis.config import SchemathesisConfig
from schemathesis.schemas import APIOperation, BaseSchema

from apps.core.operations import Route
from apps.digests.models import Entry
from apps.plans.models import Plan
from apps.principals.models import Tenant
from apps.principals.scopes import Kind, Scope
from apps.principals.tenancy import acting_as_system
from apps.receipts.models import Receipt
from apps.tasks.models import Task
from tests.console import world
from tests.factories import make_token
from tests.interfaces.asking import ROUTED
from tests.server import end_server, start_server

# So that there is a database at all; the tests themselves leave it to the web process.
pytestmark = pytest.mark.django_db

LONGEST_WAIT: Final = {"wait": 60, "wait_seconds": 30}
# Cases of each route: drawn from what it allows, from what it forbids, and from the edges of its schema.
# Of 136 routes that makes up to 7,000 of them, or 35,000.
CI: Final = (12, 12, 24)
LONG: Final = (60, 60, 120)

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


@pytest.mark.parametrize(
    "cases", [pytest.param(CI, marks=pytest.mark.ci, id="ci"), pytest.param(LONG, marks=pytest.mark.long, id="long")]
)
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


def _draw(site: Site, operation: APIOperation[Any, Any, Any, Any], mode: GenerationMode, most: int, token: str) -> None:
    turns = iter(range(10_000_000))

    @settings(
        max_examples=most,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
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
    # Nothing that is waited for would come. A wait that is no valid one is still refused.
    for asked in [asked for asked in (case.body, case.query) if isinstance(asked, dict)]:
        for name in LONGEST_WAIT.keys() & asked.keys():
            if _is_a_wait(asked[name], LONGEST_WAIT[name]):
                asked[name] = 0
    answer = case.call(base_url=site.url, headers={"Authorization": f"Bearer {token}"}, timeout=60)
    if len(answer.request.url or "") > LONGEST_URL:
        assert answer.status_code == 400
    else:
        case.validate_response(answer)


def _is_a_wait(seconds: Any, longest: int) -> bool:
    """Whether this is an allowed wait, also as text of an address."""
    try:
        return not isinstance(seconds, bool) and 0 < float(seconds) <= longest
    except (TypeError, ValueError):
        return False
