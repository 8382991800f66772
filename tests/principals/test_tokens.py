"""Tokens: shown once, kept as digests, refused without saying why."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client

from apps.core.errors import Invalid
from apps.principals import services
from apps.principals.errors import NameTaken
from apps.principals.models import Principal, Tenant, Token
from apps.principals.scopes import Kind, Scope
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from tests.factories import T0, make_token


def _whoami(token: str, header: str = "Authorization") -> tuple[int, dict[str, object]]:
    value = f"Bearer {token}" if header == "Authorization" else token
    answer = Client().get("/api/v1/whoami", headers={header: value})
    return answer.status_code, answer.json()


@pytest.mark.parametrize("header", ["Authorization", "X-Service-Token"])
def test_token_is_read_from_either_header(tenant: Tenant, header: str) -> None:
    status, body = _whoami(make_token(tenant, "Kee", scopes=[Scope.INBOX], source_systems=["ci"]), header)

    assert status == 200
    assert body == {
        "principal": "Kee",
        "kind": "ai",
        "tenant": "acme",
        "scopes": ["inbox"],
        "source_systems": ["ci"],
    }


def test_only_the_digest_is_stored(tenant: Tenant) -> None:
    text = make_token(tenant)
    with acting_as_system("test"), connection.cursor() as cursor:
        cursor.execute("select t::text from principals_token t")
        assert text.rpartition("_")[2] not in str(cursor.fetchall())


def test_invalid_tokens_get_one_answer(tenant: Tenant) -> None:
    revoked, expired = make_token(tenant, "A"), make_token(tenant, "B", expires_at=T0 + timedelta(seconds=1))
    disabled = make_token(tenant, "C")
    with acting_as_system("test"):
        services.revoke_token(token_id=Token.objects.get(principal__name="A").pk, now=T0)
        services.disable_principal(principal_id=Principal.objects.get(name="C").pk, now=T0)

    answers = [_whoami(token) for token in (revoked, expired, disabled, f"ght_00000000_{'x' * 43}", "nonsense", "")]

    assert {status for status, _ in answers} == {401}
    assert Client().get("/api/v1/whoami").headers["WWW-Authenticate"] == 'Bearer realm="gatehouse"'
    assert len({str({**body, "trace_id": ""}) for _, body in answers}) == 1


@pytest.mark.parametrize("scope", [Scope.TASKS_QUEUE, Scope.PLANS])
def test_worker_can_not_hold_scopes_that_create_work(tenant: Tenant, scope: Scope) -> None:
    with pytest.raises(Invalid, match="hold"):
        make_token(tenant, "worker-1", Kind.WORKER, scopes=[scope])
    with acting_as_system("test"):
        assert not Token.objects.exists()


def test_name_is_taken_once_per_tenant(as_kee: Caller) -> None:
    with pytest.raises(NameTaken):
        services.add_principal(tenant_id=as_kee.tenant_id, name="Kee", kind=Kind.AI, now=T0)
    assert Principal.objects.named("Kee").count() == 1


def test_use_of_a_token_is_noted(tenant: Tenant, kee: Caller) -> None:
    token = make_token(tenant)
    _whoami(token)
    with acting_as(kee):
        assert Token.objects.get().last_used_at is not None
