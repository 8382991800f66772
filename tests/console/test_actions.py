"""What operators do: by a form, with a permission and a reason, through the services, noted in the audit log."""

from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.test import Client
from django.urls import reverse

from apps.core.admin import ReasonForm
from apps.principals.models import Membership, Operator, Principal, Tenant
from apps.principals.tenancy import acting_as_system
from tests.delivery.making import make_webhook, reloaded
from tests.factories import make_caller, make_principal, make_tenant


def action(principal: Principal, name: str = "disable") -> str:
    return reverse(f"admin:principals_principal_{name}", args=[principal.pk])


def is_disabled(principal: Principal) -> bool:
    with acting_as_system("test"):
        return Principal.objects.get(pk=principal.pk).disabled_at is not None


@pytest.fixture
def kee(tenant: Tenant) -> Principal:
    return make_principal(tenant, "Kee")


def operator(*permissions: str, tenant: Tenant, role: str = "operator") -> Client:
    olga = Operator.objects.create_user(username="olga", password="x", is_staff=True)
    olga.user_permissions.set(Permission.objects.filter(codename__in=["view_principal", *permissions]))
    with acting_as_system("test"):
        Membership.objects.create(operator=olga, tenant=tenant, role=role)
    client = Client()
    client.force_login(olga, backend="django.contrib.auth.backends.ModelBackend")
    return client


ACTIONS = [
    pytest.param(window, name, id=f"{window.opts.label}-{name}")
    for window in admin.site._registry.values()
    for name in getattr(window, "actions_detail", ())
]


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
    history = console.get(reverse("admin:principals_principal_history", args=[kee.pk])).content.decode()
    assert "Disable: ticket 7" in history


def test_an_action_is_shown_to_and_done_by_who_holds_its_permission(tenant: Tenant, kee: Principal) -> None:
    page = reverse("admin:principals_principal_change", args=[kee.pk])
    may_rename = operator("rename_principal", tenant=tenant)
    shown = may_rename.get(page).content.decode()
    assert (action(kee) in shown, action(kee, "rename") in shown) == (False, True)
    assert may_rename.post(action(kee), SENT).status_code == 403
    assert not is_disabled(kee)
    may_rename.post(action(kee, "rename"), {**SENT, "name": "Kay"})
    with acting_as_system("test"):
        assert Principal.objects.get(pk=kee.pk).name == "Kay"


def test_a_viewer_acts_on_nothing_whatever_it_is_permitted(tenant: Tenant, kee: Principal) -> None:
    client = operator("disable_principal", tenant=tenant, role="viewer")
    assert client.get(action(kee)).status_code == 200
    assert client.post(action(kee), SENT).status_code == 404
    assert not is_disabled(kee)


def test_another_tenants_thing_is_not_there(tenant: Tenant) -> None:
    theirs = make_principal(make_tenant("globex"), "theirs")
    client = operator("disable_principal", tenant=tenant)
    assert client.post(action(theirs), SENT).status_code == 404
    assert not is_disabled(theirs)


def test_a_refusal_is_shown_and_nothing_is_noted(console: Client, tenant: Tenant) -> None:
    with acting_as_system("test"):
        gate = Principal.objects.get(name="asyncgate")
    console.post(action(gate), SENT)
    page = console.get(reverse("admin:principals_principal_change", args=[gate.pk])).content.decode()
    assert "asyncgate is a gate&#x27;s own principal." in page
    assert not LogEntry.objects.exists()


def test_a_target_is_stopped_and_resumed_with_a_reason(console: Client, tenant: Tenant) -> None:
    target = make_webhook(make_caller(tenant), "https://agent.example/").target

    def act(name: str) -> str:
        console.post(reverse(f"admin:delivery_target_{name}", args=[target.pk]), SENT)
        return reloaded(target).state

    assert act("stop") == "stopped"
    assert act("stop") == "stopped"  # which is refused, and stands nowhere
    assert reloaded(target).stopped_reason == "Stopped by an operator: ticket 7"
    page = console.get(reverse("admin:delivery_target_change", args=[target.pk])).content.decode()
    assert "ticket 7" in page
    assert target.secret not in page
    assert act("resume") == "enabled"
    assert [entry.change_message for entry in LogEntry.objects.order_by("pk")] == ["Stop: ticket 7", "Resume: ticket 7"]
