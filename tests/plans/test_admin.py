"""What operators see of plans."""

import re
from html import unescape

import pytest
from django.test import Client
from django.urls import reverse

from apps.plans import services
from apps.plans.models import Plan
from apps.plans.services import PlanRequest
from apps.principals.models import Operator
from apps.principals.tenancy import Caller
from tests.factories import T0
from tests.plans.test_stored_plans import FLAGSHIP, register_example_workers


@pytest.fixture
def console(db: None) -> Client:
    operator = Operator.objects.create_superuser("olga", password=None)
    client = Client()
    client.force_login(operator, backend="django.contrib.auth.backends.ModelBackend")
    return client


def text_of(console: Client, page: str, *args: object) -> str:
    shown = console.get(reverse(f"admin:plans_plan_{page}", args=args)).content.decode()
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", shown)).split())


def make(caller: Caller, intent: str = FLAGSHIP) -> Plan:
    with caller.acting():
        made = services.create_plan(caller=caller, request=PlanRequest(intent=intent), now=T0)
        return Plan.objects.get(plan_id=made.document["plan_id"])


def test_plans_are_told_apart_by_their_intents(kee: Caller, console: Client) -> None:
    make(kee, "Bake a cake")
    long = f"Order flour {'and sugar ' * 20}"
    make(kee, long)

    listing = text_of(console, "changelist")

    assert "Bake a cake" in listing
    assert f"{long[:79]}…" in listing


def test_the_page_of_a_refused_plan_says_what_is_missing_and_that_the_rest_is_no_plan(
    kee: Caller, console: Client
) -> None:
    with kee.acting():
        register_example_workers(kee)
    refused = make(kee, "Analyze the Python codebase at /path/to/repo and bake a cake")
    assert refused.status == "needs_escalation"

    page = text_of(console, "change", refused.pk)

    assert "Refused: it can't be carried out." in page
    before_the_document, _ = page.split("Document", 1)
    for one in refused.document["missing"]:
        assert one["detail"] in before_the_document
    assert "Best partial plan, which is not carried out analyze_repository" in page


def test_the_page_of_a_plan_that_can_be_carried_out_speaks_of_no_refusal(kee: Caller, console: Client) -> None:
    with kee.acting():
        register_example_workers(kee)

    page = text_of(console, "change", make(kee).pk)

    assert "Steps analyze_repository" in page
    assert "Refused" not in page
    assert "artial plan" not in page


def test_letters_of_all_scripts_are_shown_as_they_are(kee: Caller, console: Client) -> None:
    page = text_of(console, "change", make(kee, "Büro aufräumen").pk)

    assert '"Büro aufräumen"' in page
    assert "\\u00fc" not in page
