"""Every list and every thing in it can be looked at."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.sessions.models import Session
from django.core.management import call_command
from django.db.models import CharField, Model, TextField
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django.plugin import DjangoDbBlocker

from apps.console.navigation import sidebar
from apps.core import notifications
from apps.principals.models import Operator, Tenant, TenantModel
from apps.principals.tenancy import acting_as_system
from apps.receipts.models import Receipt
from tests.console.test_site import ACTIONS, OF_ONE, SENT
from tests.console.world import fill
from tests.factories import at, make_tenant, operator

SHOWN = sorted((model for model in apps.get_models() if model in admin.site._registry), key=lambda m: m._meta.label)


@pytest.fixture(scope="module")
def filled(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """One tenant in which everything has happened, for all tests here: they only look."""
    with django_db_blocker.unblock():
        fill()
        yield
        call_command("flush", interactive=False, verbosity=0)


@pytest.fixture
def world(filled: None, db: None) -> None:
    """The filled tenant; what a test adds is rolled back."""


def _planted(self: Any, value: str | None, *_: object) -> str | None:
    """Markup in each text that is read and that people or agents may write freely."""
    is_free = (
        value
        and self.model not in {Operator, Session}
        and not self.choices
        and not self.unique
        and (self.max_length or 1000) > 100
    )
    return f"{value}{PLANTED}" if is_free else value


PLANTED = "<script>alert(1)</script>"


@pytest.mark.ci
@pytest.mark.parametrize("model", SHOWN, ids=lambda model: model._meta.label)
def test_whatever_is_looked_at_writes_nothing_and_shows_text_as_text_and_only_to_its_tenant(
    world: None, console: Client, monkeypatch: pytest.MonkeyPatch, model: type[Model]
) -> None:
    """A view that wrote would fail: what looks runs in a read-only transaction."""
    name, window = f"admin:{model._meta.app_label}_{model._meta.model_name}", admin.site._registry[model]
    with acting_as_system("test"):
        first = model._default_manager.order_by("pk").first()
    dialogs = [f"{name}_{one}" for one in getattr(window, "actions_detail", ())]
    pages = [f"{name}_change", f"{name}_history", *dialogs] if first is not None else []
    pages = [reverse(page, args=[first.pk]) for page in pages if first is not None]
    stranger = operator("", tenant=make_tenant("globex"), role="operator")
    is_of_tenant = any(field.name == "tenant" for field in model._meta.get_fields())
    if is_of_tenant:
        theirs = stranger.get(reverse(f"{name}_changelist"))
        assert theirs.status_code in {200, 403}
        assert not any(page in theirs.content.decode() for page in pages)
        assert {stranger.get(page).status_code for page in pages[:2]} <= {302, 403, 404}

    for field in (CharField, TextField):
        monkeypatch.setattr(field, "from_db_value", _planted, raising=False)
    listed = [console.get(reverse(f"{name}_changelist"), query) for query in ({}, {"q": "a"})]
    adding = console.get(reverse(f"{name}_add"))
    assert adding.status_code == 403 or adding.context["adminform"].form.fields
    for answer in [*listed, *map(console.get, pages)]:
        assert answer.status_code == 200
        assert PLANTED not in answer.content.decode()


def _places(window: Any, name: str) -> tuple[str, str]:
    """The address of an action on the first thing there is, and the page that offers it."""
    kind = f"admin:{window.opts.app_label}_{window.opts.model_name}"
    if name in window.actions_list:
        return reverse(f"{kind}_{name}"), reverse(f"{kind}_changelist")
    with acting_as_system("test"):
        first = window.model._default_manager.order_by("pk").first()
    pk = first.pk if first else 1
    return reverse(f"{kind}_{name}", args=[pk]), reverse(f"{kind}_change", args=[pk])


@pytest.mark.parametrize(("window", "name"), ACTIONS)
def test_only_an_operator_of_the_tenant_who_is_permitted_acts(world: None, window: Any, name: str) -> None:
    """A viewer is not even offered it, whatever they are permitted."""
    action, page = _places(window, name)
    with acting_as_system("test"):
        acme = Tenant.objects.get(slug="acme")
    viewer = operator("", tenant=acme, role="viewer")
    assert f'hx-get="{action}"' not in viewer.get(page).content.decode()
    answer = viewer.post(action, SENT)
    assert (answer.status_code, "HX-Redirect" in answer.headers) == (404, True)
    assert "only look" in viewer.get(reverse("admin:index")).content.decode()
    others = [Client(), operator("view_principal", tenant=acme, name="una")]
    if name in getattr(window, "actions_detail", ()) and issubclass(window.model, TenantModel):
        others.append(operator("", tenant=make_tenant("globex"), name="stan"))
    assert {one.post(action, SENT).status_code for one in others} <= {302, 403, 404}
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize(("window", "name"), OF_ONE)
def test_what_is_offered_can_be_done_and_what_is_not_is_refused_with_a_reason(
    world: None, console: Client, window: Any, name: str
) -> None:
    action, page = _places(window, name)
    is_offered = f'hx-get="{action}"' in console.get(page).content.decode()
    asked = console.get(action)
    form = asked.context["form"] if asked.context else {}
    # As a browser sends it: with what the fields hold, and the first choice where one must be.
    given = {one.name: one.value() for one in form if one.value()} if is_offered else {}
    given |= {one.name: one.field.queryset.first().pk for one in form if hasattr(one.field, "queryset")}
    sent = console.post(action, {**given, **SENT})
    *_, said = console.get(reverse("admin:index")).context["messages"]
    assert said.level_tag == ("success" if is_offered else "error"), (said, sent.content)


def test_a_long_list_is_filtered_by_typing_and_counted_only_so_far(
    world: None, console: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = reverse("admin:receipts_receipt_changelist")
    with acting_as_system("test"):
        planned = Receipt.objects.filter(source_system="delegate").count()
        assert 0 < planned < Receipt.objects.count()

    found = console.get(address, {"source_system": "delegate"}).context["cl"]
    assert (found.result_count, {row.source_system for row in found.result_list}) == (planned, {"delegate"})
    assert 'name="source_system"' in console.get(address).content.decode()
    assert console.get(address, {"q": found.result_list[0].receipt_id}).context["cl"].result_count == 1
    monkeypatch.setattr("apps.core.admin.COUNTED", 2)
    assert console.get(address).context["cl"].result_count == 2


def test_tasks_are_filtered_by_the_name_of_their_queue_and_a_list_that_renews_itself_repeats_no_hint(
    world: None, console: Client
) -> None:
    address = reverse("admin:tasks_task_changelist")
    counts = [console.get(address, {"queue__name": one}).context["cl"].result_count for one in ("default", "fair", "-")]
    assert counts[0] > counts[1] > counts[2] == 0
    typed = {"q": "status:no_such"}
    console.get(address, typed, headers={"X-Renewal": "1"})
    assert [str(one)[:25] for one in console.get(address, typed).context["messages"]] == ["There is no status no_suc"]


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("status:SUCCEEDED", 1),
        ("status:succeeded queue:fair", 0),
        ("status:no_such", 0),
        ("type:index status:open", 3),
        ("type:no_such_type", 0),
        ("99999999", 0),
        ("no_such_word_in_any_params", 0),
    ],
)
def test_tasks_are_found_by_what_is_typed(world: None, console: Client, typed: str, found: int) -> None:
    assert console.get(reverse("admin:tasks_task_changelist"), {"q": typed}).context["cl"].result_count == found


def test_a_task_shows_its_life_and_only_what_can_be_done_with_it(
    world: None, console: Client, django_assert_max_num_queries: Any
) -> None:
    def page(status: str) -> str:
        listed = console.get(reverse("admin:tasks_task_changelist"), {"status": status})
        assert status in listed.content.decode()
        with django_assert_max_num_queries(25):
            return console.get(
                reverse("admin:tasks_task_change", args=[listed.context["cl"].result_list[0].pk])
            ).content.decode()

    leased, queued, succeeded = page("leased"), page("queued"), page("succeeded")
    assert "run 1 worker-1" in leased
    assert ["Cancel the task" in one for one in (leased, queued, succeeded)] == [True, True, False]
    assert ["Take it from its worker" in one for one in (leased, queued, succeeded)] == [True, False, False]


def test_every_count_of_home_is_the_number_of_rows_that_it_links_to(world: None, console: Client) -> None:
    at(timezone.now())  # no lease expires between two looks
    cards = console.get(reverse("admin:index")).context["cards"]
    counts = {
        f"{card.title}: {figure.label}": (figure.value, str(console.get(figure.link).context["cl"].result_count))
        for card in cards
        for figure in card.figures
        if "?" in figure.link
    }
    assert len(counts) > 15
    assert {label: count for label, count in counts.items() if len(set(count)) != 1} == {}
    assert {label for label, (value, _) in counts.items() if value != "0"} >= {
        "Tasks: Queued", "Tasks: Leased", "Tasks: Ended in the last hour", "Inboxes: With unread receipts",
        "Inboxes: Open obligations", "MCP workers: Ready", "Deliveries: On their way",
    }  # fmt: skip


def test_home_names_which_process_is_alive(world: None, console: Client) -> None:
    notifications.heartbeat("worker core@a")
    shown = console.get(reverse("admin:index")).context["cards"]
    figures = {figure.label: figure.value for figure in shown[-1].figures}
    assert "alive" in figures["Celery worker core@a"]


def test_what_is_kept_of_home_is_shown_to_those_alone_who_see_the_same(world: None, console: Client) -> None:
    figures = reverse("admin:live", args=["figures"])
    assert ">default" in console.get(figures).content.decode()
    assert ">default" not in operator("", tenant=make_tenant("globex"), role="viewer").get(figures).content.decode()
    assert Client().get(figures).status_code == 302


def test_home_draws_what_ended_and_what_waits(world: None, console: Client) -> None:
    hour, day, queued = (json.loads(chart.data) for chart in console.get(reverse("admin:index")).context["charts"])
    assert sum(hour["datasets"][0]["data"]) == sum(day["datasets"][0]["data"]) > 0
    assert [len(one["labels"]) for one in (hour, day, queued)] == [60, 96, 96]
    assert queued["datasets"][0]["data"][-1] > 0


def test_the_sidebar_has_an_entry_for_each_errand(world: None, console: Client) -> None:
    def titles(client: Client) -> list[str]:
        request = client.get(reverse("admin:index")).wsgi_request
        return [item["title"] for item in sidebar(request)[0]["items"]]

    assert titles(console) == [
        "Home", "Tasks", "Queues", "Schedules", "Inboxes", "Receipts", "Plans", "Executions", "Workers", "Memory",
        "Access", "Audit",
    ]  # fmt: skip
    page = console.get(reverse("admin:principals_principal_changelist")).content.decode()
    for tab in ("Tokens", "Operators", "Tenants"):
        assert tab in page
