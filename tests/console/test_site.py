"""The console: everything can be looked at, nothing changes by looking, and tenants stay apart."""

import re
from html import unescape

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Permission
from django.db import InternalError, models
from django.test import Client, RequestFactory
from django.urls import reverse

from apps.console.site import ConsoleSite
from apps.digests.models import Source
from apps.memory import services as memory
from apps.memory.models import Forgotten, Memory, SearchTerm, SearchTotals, Subject, TermFrequency, Vector
from apps.principals.models import Membership, Operator, Tenant
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.tasks.models import Dependency, FairShare, IdempotencyKey, QueueMinute, RateWindow, Run, Spend
from apps.workers.models import Allowance, Call, Offer, Registry, SourceEntry, WorkerEvent
from tests.factories import T0, make_caller, make_tenant
from tests.memory import subjects

OURS = [model for model in apps.get_models() if model.__module__.startswith("apps.")]
# Accounts of people and what they may see are edited here, by superusers; rules by operators who may.
EDITED = {Operator, Membership, Source}
FACTS = [model for model in OURS if model not in EDITED and model in admin.site._registry]


def address(model: type[models.Model], page: str, *args: object) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{page}", args=args)


def observed(author: Caller, text: str) -> Memory:
    with acting_as(author):
        return memory.store_observation(author=author, text=text, now=T0)


# Rows that are a keyed digest and a moment, from which nobody learns anything.
UNREADABLE = {Forgotten}
# Counters, the search index, and rows that stand on the page of their worker, source, task or queue.
WITHOUT_A_PAGE = {
    Allowance, Call, Dependency, FairShare, IdempotencyKey, Offer, QueueMinute, RateWindow, Registry, Run, SearchTerm,
    SearchTotals, SourceEntry, Spend, TermFrequency, Vector, WorkerEvent,
}  # fmt: skip


def test_every_model_of_every_app_that_says_something_is_visible() -> None:
    assert isinstance(admin.site, ConsoleSite) or type(admin.site).__name__ == "DefaultAdminSite"
    assert {model for model in OURS if model not in admin.site._registry} == UNREADABLE | WITHOUT_A_PAGE


@pytest.mark.parametrize("model", FACTS, ids=lambda model: model._meta.label)
def test_nothing_that_is_remembered_can_be_added_changed_or_deleted(model: type[models.Model]) -> None:
    request = RequestFactory().get("/")
    request.user = Operator(is_superuser=True, is_active=True, is_staff=True)
    window = admin.site._registry[model]
    assert not window.has_add_permission(request)
    assert not window.has_change_permission(request)
    assert not window.has_delete_permission(request)


def test_the_dashboard_and_the_sidebar_show_what_there_is(console: Client) -> None:
    page = console.get(reverse("admin:index"))
    assert page.status_code == 200
    for text in ("Oldest ready", "Dead letters", "Memory", "Identity", "System"):
        assert text in page.content.decode()


def test_the_sidebar_has_no_plurals_that_are_no_words(console: Client) -> None:
    page = console.get(reverse("admin:index")).content.decode()
    for plural in ("Memory policies", "Promotion policies", "Envelopes loaded"):
        assert plural in page
    assert not re.search(r"policys|loadeds|Forgottens", page)


def test_the_page_of_a_subject_shows_what_is_remembered_of_it(console: Client) -> None:
    kee = make_caller(make_tenant("acme"))
    with acting_as(kee):
        alice = subjects.add(kee)
        subjects.add(kee, "USER:bob")
        subjects.remember(kee, "Lives in <b>Berlin</b>", slot="home")
        subjects.remember(kee, "Lives in Paris", slot="home")
        subjects.remember(kee, "Sings", "USER:bob")

    page = console.get(address(Subject, "change", alice.pk)).content.decode()
    (all_of_them,) = re.findall(rf'href="({address(Memory, "changelist")}\?[^"]+)"', page)
    listing = console.get(unescape(all_of_them)).content.decode()

    assert "Lives in Paris" in page
    assert "Berlin" not in page
    assert "Sings" not in page
    assert "Lives in &lt;b&gt;Berlin&lt;/b&gt;" in listing
    assert "Lives in Paris" in listing
    assert "Sings" not in listing


def test_an_operator_sees_its_tenants_and_no_other(db: None) -> None:
    ours, theirs = make_tenant("acme"), make_tenant("globex")
    mine = observed(make_caller(ours), "ours to see")
    other = observed(make_caller(theirs), "theirs alone")
    operator = Operator.objects.create_user(username="olga", password="x", is_staff=True)
    operator.user_permissions.set(Permission.objects.filter(codename__startswith="view_"))
    with acting_as_system("test"):
        Membership.objects.create(operator=operator, tenant=Tenant.objects.get(slug="acme"), role="viewer")
    client = Client()
    client.force_login(operator, backend="django.contrib.auth.backends.ModelBackend")

    listing = client.get(address(Memory, "changelist")).content.decode()
    assert "ours to see" in listing
    assert "theirs alone" not in listing
    assert "globex" not in listing
    assert client.get(address(Memory, "change", mine.pk)).status_code == 200
    assert client.get(address(Memory, "change", other.pk)).status_code == 302
    assert "globex" not in client.get(address(Tenant, "changelist")).content.decode()


def test_a_superuser_lets_an_operator_see_a_tenant_and_nobody_else_can(console: Client, superuser: Operator) -> None:
    tenant = make_tenant("acme")
    olga = Operator.objects.create_user(username="olga", password="x", is_staff=True)
    olga.user_permissions.set(Permission.objects.all())
    membership = {"operator": olga.pk, "tenant": tenant.pk, "role": "viewer"}
    client = Client()
    client.force_login(olga, backend="django.contrib.auth.backends.ModelBackend")

    assert client.post(address(Membership, "add"), membership).status_code == 403
    assert client.get(address(Operator, "change", superuser.pk)).status_code == 403
    assert not Membership.objects.exists()

    assert console.post(address(Membership, "add"), membership).status_code == 302
    assert Membership.objects.get().operator == olga


def test_a_request_that_looks_can_not_write(console: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    window = admin.site._registry[Tenant]

    def writes(request: object) -> object:
        Tenant.objects.update(name="changed by looking")
        return type(window).get_queryset(window, request)  # type: ignore[arg-type]

    make_tenant("acme")
    monkeypatch.setattr(window, "get_queryset", writes, raising=False)
    with pytest.raises(InternalError, match="read-only"):
        console.get(address(Tenant, "changelist"))
    with acting_as_system("test"):
        assert Tenant.objects.get().name == "acme"


@pytest.mark.parametrize("path", ["", "memory/observation/", "principals/token/", "login/"])
def test_a_stranger_is_sent_to_the_login(db: None, path: str) -> None:
    answer = Client().get(f"/admin/{path}")
    assert answer.status_code == (200 if path == "login/" else 302)
    assert path == "login/" or answer.headers["Location"].startswith("/admin/login/")


def test_whoever_opens_the_login_itself_comes_to_the_dashboard(superuser: Operator) -> None:
    given = {"username": "root", "password": "a long enough password"}
    assert Client().post("/admin/login/", given).headers["Location"] == "/admin/"
    asked_for = Client().post("/admin/login/?next=/admin/plans/plan/", {**given, "next": "/admin/plans/plan/"})
    assert asked_for.headers["Location"] == "/admin/plans/plan/"


def test_ten_wrong_passwords_close_the_door_to_the_right_one(superuser: Operator) -> None:
    client = Client()
    answers = [client.post("/admin/login/", {"username": "root", "password": "wrong"}) for _ in range(10)]
    assert [answer.status_code for answer in answers] == [200] * 9 + [429]
    assert client.post("/admin/login/", {"username": "root", "password": "a long enough password"}).status_code == 429


def test_no_page_loads_anything_from_another_host(console: Client) -> None:
    answer = console.get(reverse("admin:index"))
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "http" not in policy
    assert "script-src 'self' 'unsafe-eval'" in policy or "script-src 'unsafe-eval' 'self'" in policy
    assert "'unsafe-eval'" not in Client().get("/livez").headers["Content-Security-Policy"]
    assert "'unsafe-inline'" not in policy.split("script-src")[1].split(";")[0]
