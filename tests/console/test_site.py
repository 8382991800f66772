"""The console: everything can be looked at, nothing changes by looking, and actions ask for a reason."""

import re
from html import unescape
from typing import Any

import httpx2
import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.db import InternalError, models
from django.test import Client, RequestFactory
from django.urls import reverse

from apps.core.admin import ReasonForm
from apps.core.sql import database_now
from apps.digests.models import Entry, Inbox, ReceiptState, Source, SourceHour, Thread
from apps.memory.models import (
    ConceptName,
    EnvelopeLoaded,
    Memory,
    MemoryPolicy,
    Relationship,
    Revision,
    SearchTerm,
    SearchTotals,
    Subject,
    TermFrequency,
    Vector,
)
from apps.plans.models import LearnedModel
from apps.principals.models import Membership, Operator, Principal, Tenant
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.receipts.models import ReceiptKey
from apps.tasks.models import (
    Budget,
    Dependency,
    FairShare,
    FinishedTask,
    IdempotencyKey,
    LiveTask,
    QueueHistory,
    RateWindow,
    Run,
)
from apps.workers.models import Allowance, Call, Offer, Registry, SourceEntry, ToolVersion, WorkerEvent
from tests.digests.makers import ack_through, post, post_grouped, read
from tests.factories import ask, make_caller, make_principal, make_tenant, make_token, operator
from tests.memory import subjects
from tests.server import end_server, start_server

OURS = [model for model in apps.get_models() if model.__module__.startswith("apps.")]
# Accounts of people and what they may see are edited here, by superusers; rules by operators who may.
EDITED = {Operator, Membership, Source}
FACTS = [model for model in OURS if model not in EDITED and model in admin.site._registry]


def address(model: type[models.Model], page: str, *args: object) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{page}", args=args)


# Counters, the search index, policies, and rows that stand on the page of their worker, source, task, queue, execution or
# inbox, or that REST answers.
WITHOUT_A_PAGE = {
    Allowance, Budget, Call, ConceptName, Dependency, Entry, EnvelopeLoaded, FairShare, FinishedTask, IdempotencyKey,
    LearnedModel, LiveTask, MemoryPolicy, Offer, QueueHistory, RateWindow, ReceiptKey, ReceiptState,
    Registry, Relationship, Revision, Run, SearchTerm, SearchTotals, SourceEntry, SourceHour, TermFrequency, ToolVersion,
    Vector, WorkerEvent,
}  # fmt: skip


def test_every_model_of_every_app_that_says_something_is_visible() -> None:
    assert {model for model in OURS if model not in admin.site._registry} == WITHOUT_A_PAGE


@pytest.mark.parametrize("model", FACTS, ids=lambda model: model._meta.label)
def test_nothing_that_is_remembered_can_be_added_changed_or_deleted(model: type[models.Model]) -> None:
    request = RequestFactory().get("/")
    request.user = Operator(is_superuser=True, is_active=True, is_staff=True)
    window = admin.site._registry[model]
    for verb in ("add", "change", "delete"):
        assert not getattr(window, f"has_{verb}_permission")(request)


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


def test_a_superuser_lets_an_operator_see_a_tenant_and_nobody_else_can(console: Client, superuser: Operator) -> None:
    tenant = make_tenant("acme")
    account = {
        "username": "olga",
        "usable_password": "true",
        **dict.fromkeys(["password1", "password2"], "a long one 7"),
    }
    console.post(address(Operator, "add"), account)
    Operator.objects.filter(username="olga").update(is_staff=True)
    olga = Operator.objects.get(username="olga")
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


@pytest.mark.parametrize("path", ["", "memory/memory/", "principals/token/"])
def test_a_stranger_is_sent_to_the_login(db: None, path: str) -> None:
    assert Client().get(f"/admin/{path}").headers["Location"].startswith("/admin/login/")


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


def test_a_session_outlives_a_new_key_until_the_old_one_is_dropped(superuser: Operator, settings: Any) -> None:
    used, idle = Client(), Client()
    for client in (used, idle):
        client.post("/admin/login/", {"username": "root", "password": "a long enough password"})
    settings.SECRET_KEY_FALLBACKS, settings.SECRET_KEY = [settings.SECRET_KEY], "a new key in front"
    assert used.get("/admin/").status_code == 200
    settings.SECRET_KEY_FALLBACKS = []
    assert used.get("/admin/").status_code == 200
    assert idle.get("/admin/").headers["Location"].startswith("/admin/login/")


@pytest.mark.ci
@pytest.mark.parametrize("proxies", [0, 1])
def test_guesses_are_counted_by_an_address_that_the_client_does_not_choose(proxies: int, acme: Tenant) -> None:
    Operator.objects.create_superuser(username="root", password="a long enough password")
    process, url = start_server(GATEHOUSE_PROXIES=str(proxies))

    def login(password: str, told: str, address: str) -> int:
        forwarded = f"{told}, {address}" if proxies else told
        with httpx2.Client(base_url=url, headers={"X-Forwarded-For": forwarded, "X_Forwarded_For": told}) as client:
            client.get("/admin/login/")
            form = {"username": "root", "password": password, "csrfmiddlewaretoken": client.cookies["csrftoken"]}
            return client.post("/admin/login/", data=form).status_code

    try:
        answers = [login("wrong", f"203.0.113.{number}", "192.0.2.7") for number in range(10)]
        assert answers == [200] * 9 + [429]
        assert login("a long enough password", "203.0.113.99", "192.0.2.7") == 429
        # A guesser behind the same proxy closes the door to nobody else.
        assert login("a long enough password", "192.0.2.7", "198.51.100.1") == (302 if proxies else 429)
        assert login("a long enough password", "192.0.2.7", "no address") == (302 if proxies else 429)
    finally:
        end_server(process)


def test_no_page_loads_anything_from_another_host(console: Client) -> None:
    policy = console.get(reverse("admin:index")).headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    # What scripts may do is as the default.
    assert not [one for one in ("http", "eval", "script-src") if one in policy]


def action(principal: Principal, name: str = "disable") -> str:
    return reverse(f"admin:principals_principal_{name}", args=[principal.pk])


def is_disabled(principal: Principal) -> bool:
    with acting_as_system("test"):
        return Principal.objects.get(pk=principal.pk).disabled_at is not None


@pytest.fixture
def kee(tenant: Tenant) -> Principal:
    return make_principal(tenant, "Kee")


def _actions(kind: str) -> list[Any]:
    return [
        pytest.param(window, name, id=f"{window.opts.label}-{name}")
        for window in admin.site._registry.values()
        for name in getattr(window, kind, ())
    ]


OF_ONE = _actions("actions_detail")
ACTIONS = [*OF_ONE, *_actions("actions_list")]


@pytest.mark.parametrize(("window", "name"), ACTIONS)
def test_every_action_asks_why_and_names_a_permission_that_there_is(db: None, window: Any, name: str) -> None:
    declared = window.get_unfold_action(name)
    assert issubclass(declared.dialog["form_class"], ReasonForm)
    (permission,) = declared.method.allowed_permissions
    app, codename = permission.split(".")
    assert Permission.objects.filter(content_type__app_label=app, codename=codename).count() == 1


SENT = {"_form_submitted": "on", "reason": "ticket 7"}


def test_an_action_needs_a_sent_form_and_its_reason(console: Client, kee: Principal) -> None:
    dialog = console.get(action(kee), SENT)
    assert (dialog.status_code, "reason" in dialog.content.decode()) == (200, True)
    assert console.post(action(kee), {"_form_submitted": "on", "reason": ""}).status_code == 200
    assert not is_disabled(kee)

    done = console.post(action(kee), SENT)
    assert done.headers["HX-Redirect"] == reverse("admin:principals_principal_change", args=[kee.pk])
    assert is_disabled(kee)
    (noted,) = LogEntry.objects.all()
    assert (noted.object_repr, noted.change_message, noted.user.username) == ("Kee", "Disable: ticket 7", "root")
    history = reverse("admin:principals_principal_history", args=[kee.pk])
    assert history in console.get(done.headers["HX-Redirect"]).content.decode()
    assert "Disable: ticket 7" in console.get(history).content.decode()
    viewer = operator("view_principal", "view_logentry", tenant=kee.tenant, role="viewer")
    audit, theirs = reverse("admin:admin_logentry_changelist"), make_tenant("globex")
    assert f"{history.removesuffix('history/')}change/" in viewer.get(audit).content.decode()
    with acting_as_system("test"):
        Membership.objects.update(tenant=theirs)
    assert "ticket 7" not in viewer.get(audit).content.decode()


def test_an_action_is_shown_to_and_done_by_who_holds_its_permission(tenant: Tenant, kee: Principal) -> None:
    page = reverse("admin:principals_principal_change", args=[kee.pk])
    may_revoke = operator("view_principal", "revoke_principal_tokens", tenant=tenant)
    token = make_token(tenant, "Kee")
    shown = may_revoke.get(page).content.decode()
    assert (action(kee) in shown, action(kee, "revoke_tokens") in shown) == (False, True)
    assert may_revoke.post(action(kee), SENT).status_code == 403
    assert not is_disabled(kee)
    may_revoke.post(action(kee, "revoke_tokens"), SENT)
    assert ask("GET", "whoami", token)[0] == 401


def test_another_tenants_thing_is_not_there(tenant: Tenant) -> None:
    theirs = make_principal(make_tenant("globex"), "theirs")
    client = operator("view_principal", "disable_principal", tenant=tenant)
    assert client.post(action(theirs), SENT).status_code == 404
    assert not is_disabled(theirs)


def test_a_refusal_is_shown_and_nothing_is_noted(console: Client, tenant: Tenant) -> None:
    with acting_as_system("test"):
        gate = Principal.objects.get(name="asyncgate")
    console.post(action(gate), SENT)
    shown = console.get(reverse("admin:principals_principal_change", args=[gate.pk])).content.decode()
    assert "be done now with asyncgate" in shown
    given = {**SENT, "tenant": tenant.pk, "name": "asyncgate", "kind": "ai"}
    console.post(reverse("admin:principals_principal_add_principal"), given)
    assert "There is a principal" in console.get(reverse("admin:index")).content.decode()
    assert not LogEntry.objects.exists()


def page_of(console: Client, kind: str, pk: int, **query: str | int) -> str:
    answer = console.get(reverse(f"admin:digests_{kind}_change", args=[pk]), query)
    assert answer.status_code == 200
    return " ".join(answer.content.decode().split())


@pytest.fixture
def reader(tenant: Tenant) -> Caller:
    reader = make_caller(tenant)
    with acting_as(reader):
        now = database_now()
        post(reader, title="Nightly <b>run</b>", now=now)
        for _ in range(3):
            post_grouped(reader, now=now)
        post_grouped(reader, flush_class="immediate", now=now)
        post_grouped(reader, flush_class="immediate", now=now)
        post_grouped(reader, "pr:2", now=now)
    return reader


def test_the_inbox_page_shows_what_its_principal_sees(reader: Caller, console: Client) -> None:
    with acting_as(reader):
        seen = read(reader)
        inbox = Inbox.objects.get()
    page = page_of(console, "inbox", inbox.pk)
    assert "6 unread in visible entries, 1 in buffers; as of 3." in page
    assert [entry.ref in page for entry in seen.entries] == [True, True]
    assert "Nightly &lt;b&gt;run&lt;/b&gt;" in page
    assert "digest_snapshot, 5 receipts, immediate, github:pr:1:ci" in page
    with acting_as(reader):
        assert not ReceiptState.objects.exclude(delivered_at=None).exists()


def test_the_thread_page_shows_its_snapshots_with_their_reasons(reader: Caller, console: Client) -> None:
    with acting_as(reader):
        ack_through(reader, read(reader).entries[-1].token)
    with acting_as_system("test"):
        thread = Thread.objects.get(resource_ref="pr:1")
    page = page_of(console, "thread", thread.pk)
    assert "by immediate, 5 receipts, acked: ci on pr:1: 5 receipts" in page
    assert "by immediate, 4 receipts, superseded by 3: ci on pr:1: 4 receipts" in page
