"""Targets over HTTP: made, looked at, changed, tested and deleted by their owner and nobody else."""

import json
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from standardwebhooks import Webhook, WebhookVerificationError

from apps.activation.models import Target
from apps.core.ids import format_ref
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as_system
from tests import remote as remotes
from tests.activation.making import make_target, wake
from tests.digests.makers import pass_time, post
from tests.factories import make_caller, make_token
from tests.remote import Remote, says


class Owner:
    """A principal's way to its targets."""

    def __init__(self, tenant: Tenant, name: str) -> None:
        self._headers = {"Authorization": f"Bearer {make_token(tenant, name)}"}

    def ask(self, method: str, path: str = "", status: int = 200, **given: Any) -> Any:
        body = json.dumps(given) if method in {"POST", "PATCH"} else ""
        answer = Client().generic(
            method, f"/api/v1/targets{path}", body, content_type="application/json", headers=self._headers
        )
        assert answer.status_code == status, answer.content
        return answer.json()

    def make(self, url: str, **given: Any) -> Any:
        return self.ask("POST", status=201, url=url, **given)


@pytest.fixture
def owner(tenant: Tenant) -> Owner:
    return Owner(tenant, "Kee")


def stored() -> list[tuple[Any, ...]]:
    with acting_as_system("test"):
        return list(Target.objects.order_by("pk").values_list())


def test_the_secret_is_shown_once_and_stored_sealed(owner: Owner, agent: Remote) -> None:
    made = owner.make(agent.url, notify_lease_ms=5000, min_unacked=2, with_titles=True)
    assert made["secret"].startswith("whsec_")
    shown = {name: value for name, value in made.items() if name != "secret"}
    assert (shown["kind"], shown["url"], shown["state"]) == ("webhook", agent.url, "enabled")
    assert (shown["notify_lease_ms"], shown["min_unacked"], shown["with_titles"]) == (5000, 2, True)
    (listed,) = owner.ask("GET")["targets"]
    assert listed.keys() == shown.keys()
    assert owner.ask("GET", f"/{made['target']}").keys() == shown.keys()
    assert made["secret"].removeprefix("whsec_") not in str(stored())


def test_a_test_is_a_signed_ping_that_counts_for_nothing(owner: Owner, agent: Remote) -> None:
    made = owner.make(agent.url)
    assert owner.ask("POST", f"/{made['target']}/test") == {"delivered": True, "result": "HTTP 200"}
    (call,) = agent.received
    assert Webhook(made["secret"]).verify(call.body, dict(call.headers))["type"] == "ping"
    agent.always = says(410)
    assert owner.ask("POST", f"/{made['target']}/test") == {"delivered": False, "result": "HTTP 410"}
    agent.always = remotes.hangs_up
    assert owner.ask("POST", f"/{made['target']}/test")["result"].startswith("disconnected: ")
    left = owner.ask("GET", f"/{made['target']}")
    assert (left["state"], left["sent"], left["failed"], left["result"]) == ("enabled", 0, 0, None)


def test_a_test_of_an_address_that_can_not_be_called_says_so(owner: Owner) -> None:
    refused = owner.ask("POST", status=422, url="http://0177.0.0.1:18799/x")
    assert refused["code"] == "forbidden_endpoint"


def test_during_a_rotation_either_secret_verifies_and_then_only_the_new_one(
    as_kee: Caller, owner: Owner, agent: Remote
) -> None:
    made = make_target(as_kee, agent.url, notify_lease=timedelta(0))
    ref = format_ref("tgt", made.target.pk)
    new = owner.ask("POST", f"/{ref}/rotate-secret", overlap_ms=60_000)["secret"]
    assert new != made.secret
    post(as_kee)
    assert wake(made.target)
    call = agent.received[0]
    for secret in (made.secret, new):
        Webhook(secret).verify(call.body, dict(call.headers))
    pass_time(60)
    post(as_kee)
    assert wake(made.target)
    call = agent.received[1]
    Webhook(new).verify(call.body, dict(call.headers))
    with pytest.raises(WebhookVerificationError):
        Webhook(made.secret).verify(call.body, dict(call.headers))


def test_a_target_is_changed_stopped_resumed_and_deleted(owner: Owner, agent: Remote) -> None:
    ref = owner.make(agent.url)["target"]
    changed = owner.ask("PATCH", f"/{ref}", url=f"{agent.url}/other", notify_lease_ms=0, enabled=False)
    assert (changed["url"], changed["notify_lease_ms"], changed["min_unacked"]) == (f"{agent.url}/other", 0, 1)
    assert (changed["state"], changed["stopped_reason"]) == ("stopped", "Stopped by its owner.")
    assert owner.ask("PATCH", f"/{ref}", enabled=True)["state"] == "enabled"
    assert owner.ask("DELETE", f"/{ref}") == {"target": ref, "status": "deleted"}
    owner.ask("GET", f"/{ref}", status=404)
    assert stored() == []


def test_targets_are_listed_in_pages(owner: Owner, agent: Remote) -> None:
    refs = [owner.make(f"{agent.url}/{number}")["target"] for number in range(3)]
    first = owner.ask("GET", "?limit=2")
    rest = owner.ask("GET", f"?limit=2&cursor={first['next']}")
    assert [one["target"] for one in first["targets"] + rest["targets"]] == refs
    assert rest["next"] is None


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/test"), ("POST", "/rotate-secret")],
)
def test_anothers_target_is_not_there(tenant: Tenant, owner: Owner, agent: Remote, method: str, path: str) -> None:
    ref = owner.make(agent.url)["target"]
    before = stored()
    hexy = Owner(tenant, "Hexy")
    number = int(ref.removeprefix("tgt_"))
    unknown = hexy.ask(method, f"/tgt_{number + 1}{path}", status=404)
    theirs = hexy.ask(method, f"/{ref}{path}", status=404)
    assert theirs["code"] == unknown["code"] == "unknown_target"
    assert hexy.ask("GET")["targets"] == []
    assert (stored(), agent.received) == (before, [])


@pytest.mark.parametrize(
    ("given", "status", "code"),
    [
        ({}, 422, "invalid"),
        ({"url": "https://10.1.2.3/hook"}, 422, "forbidden_endpoint"),
        ({"url": "https://[::1%25eth0]:443/"}, 422, "forbidden_endpoint"),
        ({"url": "https://169.254.169.254/"}, 422, "forbidden_endpoint"),
        ({"url": "http://1.1.1.1/"}, 422, "forbidden_endpoint"),
        ({"url": "https://user:word@1.1.1.1/"}, 422, "forbidden_endpoint"),
        ({"url": "ftp://1.1.1.1/"}, 422, "invalid"),
        ({"url": "https://1.1.1.1/ space"}, 422, "invalid"),
        ({"url": "https://1.1.1.1/" + "x" * 500}, 422, "invalid"),
        ({"url": "https://1.1.1.1/", "min_unacked": 0}, 422, "invalid"),
        ({"url": "https://1.1.1.1/", "notify_lease_ms": -1}, 422, "invalid"),
        ({"url": "https://1.1.1.1/", "notify_lease_ms": 2**53}, 422, "invalid"),
        ({"url": "https://1.1.1.1/", "secret": "whsec_mine"}, 422, "invalid"),
    ],
)
def test_what_can_not_be_a_target_is_refused(owner: Owner, given: dict[str, Any], status: int, code: str) -> None:
    assert owner.ask("POST", status=status, **given)["code"] == code
    assert stored() == []


def test_changes_to_what_can_not_be_are_refused_and_change_nothing(owner: Owner, agent: Remote) -> None:
    owner.make(f"{agent.url}/1")
    ref = owner.make(f"{agent.url}/2")["target"]
    before = stored()
    assert owner.ask("PATCH", f"/{ref}", status=409, url=f"{agent.url}/1")["code"] == "target_exists"
    assert owner.ask("POST", status=409, url=f"{agent.url}/1")["code"] == "target_exists"
    assert owner.ask("PATCH", f"/{ref}", status=422, url="https://10.0.0.1/")["code"] == "forbidden_endpoint"
    assert owner.ask("PATCH", "/thr_1", status=400)["code"] == "malformed"
    assert owner.ask("POST", f"/{ref}/rotate-secret", status=422, overlap_ms=-1)["code"] == "invalid"
    assert stored() == before


def test_a_principal_has_so_many_targets_and_no_more(owner: Owner, agent: Remote, monkeypatch: Any) -> None:
    monkeypatch.setattr("apps.activation.services.targets.MOST", 2)
    for number in range(2):
        owner.make(f"{agent.url}/{number}")
    assert owner.ask("POST", status=409, url=f"{agent.url}/3")["code"] == "too_many_targets"
    assert len(stored()) == 2


def test_a_target_says_how_its_calls_went(as_kee: Caller, owner: Owner, agent: Remote) -> None:
    target = make_target(as_kee, agent.url).target
    post(as_kee)
    agent.script = [says(500)]
    wake(target)
    pass_time(5)
    wake(target)
    shown = owner.ask("GET", f"/tgt_{target.pk}")
    assert (shown["sent"], shown["failed"], shown["wasted"], shown["attempts"]) == (1, 1, 0, 0)
    assert (shown["covered_seq"], shown["result"]) == (1, "HTTP 200")


def test_targets_of_a_tenant_do_not_show_in_another(tenant: Tenant, as_kee: Caller) -> None:
    make_target(as_kee, "https://agent.example/")
    make_caller(tenant, "Hexy")
    with connection.cursor() as cursor:
        cursor.execute("select set_config('gatehouse.tenant', '', true)")
        for table in ("activation_target", "activation_dispatch"):
            cursor.execute(f"select count(*) from {table}")
            assert cursor.fetchone() == (0,)
