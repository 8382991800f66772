"""What operators see of workers and keys, and what they do to them."""

from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.test import Client
from django.urls import reverse

from apps.principals.models import Membership, Operator, Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.workers.models import SigningKey, Worker
from apps.workers.trust import Tier
from tests.factories import make_caller
from tests.workers.factories import enroll, make_key, make_manifest, public_half, register, signed

SENT = {"_form_submitted": "on", "reason": "ticket 7"}


@pytest.fixture
def console(tenant: Tenant) -> Client:
    return client_of(Operator.objects.create_superuser(username="root", password="a long enough password"))


@pytest.fixture
def kee(tenant: Tenant) -> Caller:
    return make_caller(tenant, "kee", Kind.WORKER)


def client_of(operator: Operator) -> Client:
    client = Client()
    client.force_login(operator, backend="django.contrib.auth.backends.ModelBackend")
    return client


def stored(kee: Caller, key: dict[str, str]) -> Worker:
    with acting_as(kee):
        enroll(kee, key, Tier.VERIFIED)
        return register(kee, signed(make_manifest(), key)).worker


def seen(pk: int) -> Worker:
    with acting_as_system("test"):
        return Worker.objects.get(pk=pk)


def page(model: str, pk: int) -> str:
    return reverse(f"admin:workers_{model}_change", args=[pk])


def act(client: Client, model: str, name: str, pk: int) -> int:
    return client.post(reverse(f"admin:workers_{model}_{name}", args=[pk]), SENT).status_code


def test_worker_page_shows_trust_tools_and_history(console: Client, kee: Caller) -> None:
    key = make_key("vendor-key")
    worker = stored(kee, key)
    with acting_as(kee):
        register(kee, make_manifest())
        tool = worker.offers.get().tool

    text = console.get(page("worker", worker.pk)).content.decode()

    assert "the manifest is not signed, or names no key" in text
    assert "verified to untrusted" in text
    assert "the tier untrusted does not allow read" in text
    assert "Calls an hour: <strong>1</strong>" in text
    assert page("toolversion", tool.pk) in text
    assert "repo_path" in console.get(page("toolversion", tool.pk)).content.decode()
    with acting_as(kee):
        register(kee, signed(make_manifest(), key))
    text = console.get(page("worker", worker.pk)).content.decode()
    assert "signed by vendor-key" in text
    assert "Calls an hour: <strong>50</strong>" in text


def test_operator_quarantines_releases_and_unregisters(console: Client, kee: Caller) -> None:
    worker = stored(kee, make_key())

    act(console, "worker", "quarantine", worker.pk)
    assert seen(worker.pk).state == "quarantined"
    act(console, "worker", "release", worker.pk)
    assert seen(worker.pk).state == "offline"
    act(console, "worker", "release", worker.pk)
    act(console, "worker", "unregister", worker.pk)
    assert seen(worker.pk).unregistered_at is not None

    assert [entry.change_message for entry in LogEntry.objects.order_by("pk")] == [
        "Quarantine: ticket 7",
        "Release: ticket 7",
        "Unregister: ticket 7",
    ]
    text = console.get(page("worker", worker.pk)).content.decode()
    assert "ready to quarantined: by an operator: ticket 7" in text
    assert "by an operator: ticket 7" in text


def test_operator_enrolls_and_revokes_a_key(console: Client, kee: Caller, tenant: Tenant) -> None:
    key = make_key("vendor-key")
    given: dict[str, Any] = {
        "tenant": tenant.pk,
        "key_id": "vendor-key",
        "public_key": public_half(key),
        "ceiling": "verified",
    }
    address = reverse("admin:workers_signingkey_enroll")

    console.post(address, {**SENT, **given, "public_key": "nonsense"})
    with acting_as_system("test"):
        assert not SigningKey.objects.exists()
    done = console.post(address, {**SENT, **given})
    assert done.headers["HX-Redirect"] == reverse("admin:workers_signingkey_changelist")
    worker = stored(kee, key)
    assert worker.effective_tier == "verified"
    with acting_as_system("test"):
        stored_key = SigningKey.objects.get()

    act(console, "signingkey", "revoke", stored_key.pk)

    assert seen(worker.pk).tier_reason == "the key vendor-key was revoked: ticket 7"
    assert [entry.change_message for entry in LogEntry.objects.order_by("pk")] == [
        "Enroll: ticket 7",
        "Revoke: ticket 7",
    ]
    listing = console.get(reverse("admin:workers_signingkey_changelist")).content.decode()
    assert address in listing


def test_actions_need_the_permission(tenant: Tenant, kee: Caller) -> None:
    worker = stored(kee, make_key())
    olga = Operator.objects.create_user(username="olga", password="x", is_staff=True)
    olga.user_permissions.set(Permission.objects.filter(codename__in=["view_worker", "view_signingkey"]))
    with acting_as_system("test"):
        Membership.objects.create(operator=olga, tenant=tenant, role="operator")
        key = SigningKey.objects.get()
    client = client_of(olga)

    answers = [act(client, "worker", name, worker.pk) for name in ("quarantine", "release", "unregister")]
    answers.append(act(client, "signingkey", "revoke", key.pk))
    answers.append(client.post(reverse("admin:workers_signingkey_enroll"), SENT).status_code)

    assert answers == [403] * 5
    found = seen(worker.pk)
    assert (found.state, found.effective_tier, found.unregistered_at) == ("ready", "verified", None)
    assert (
        reverse("admin:workers_worker_quarantine", args=[worker.pk])
        not in client.get(page("worker", worker.pk)).content.decode()
    )
