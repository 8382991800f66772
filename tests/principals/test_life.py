"""Principals and their tokens: made, refused without saying why, rotated, disabled, revoked."""

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from apps.core.errors import Conflict, Invalid, NotFound
from apps.core.sql import fetch
from apps.principals import services
from apps.principals.models import Principal, Tenant, Token
from apps.principals.scopes import Kind, Scope
from apps.principals.selectors import NameTaken, UnknownPrincipal
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from tests.factories import T0, ask, make_caller, make_token


@pytest.fixture
def admin(tenant: Tenant) -> str:
    return make_token(tenant, "ops", Kind.SERVICE, scopes=[Scope.ADMIN])


def test_disabled_principal_is_refused_until_enabled(tenant: Tenant, admin: str) -> None:
    kee = make_token(tenant, "Kee")
    assert ask("POST", "principals/Kee/disable", admin)[0] == 200
    assert ask("GET", "whoami", kee)[0] == 401
    first = ask("POST", "principals/Kee/disable", admin)[1]["disabled_at"]
    assert ask("POST", "principals/Kee/disable", admin)[1]["disabled_at"] == first

    assert ask("POST", "principals/Kee/enable", admin)[1]["disabled_at"] is None
    assert ask("GET", "whoami", kee)[0] == 200


@pytest.mark.parametrize("name", sorted(services.BUILT_IN))
def test_built_in_principal_is_not_changed(tenant: Tenant, name: str) -> None:
    with acting_as(make_caller(tenant)):
        gate = Principal.objects.get(name=name)
        with pytest.raises(Conflict, match="own principal"):
            services.disable_principal(principal_id=gate.pk, now=T0)
        with pytest.raises(UnknownPrincipal):
            services.disable_principal(principal_id=0, now=T0)
        gate.refresh_from_db()
        assert (gate.name, gate.disabled_at) == (name, None)


def test_all_tokens_of_a_principal_end_at_once(tenant: Tenant, admin: str) -> None:
    first, second, other = make_token(tenant, "Kee"), make_token(tenant, "Kee"), make_token(tenant, "Hexy")
    assert ask("POST", "principals/Kee/revoke-tokens", admin) == (200, {"revoked": 2})
    assert ask("POST", "principals/Kee/revoke-tokens", admin) == (200, {"revoked": 0})
    assert [ask("GET", "whoami", token)[0] for token in (first, second, other)] == [401, 401, 200]


def test_principal_sees_and_revokes_only_its_own_tokens(tenant: Tenant) -> None:
    first, second = make_token(tenant, "Kee", source_systems=["ci"]), make_token(tenant, "Kee")
    make_token(tenant, "Hexy")
    status, page = ask("GET", "tokens?limit=1", first)
    assert (status, len(page["tokens"])) == (200, 1)
    rest = ask("GET", f"tokens?limit=1&cursor={page['next']}", first)[1]
    assert (rest["tokens"][0]["source_systems"], rest["next"]) == (["ci"], None)
    assert first not in str(page)

    with acting_as_system("test"):
        theirs = Token.objects.get(principal__name="Hexy").pk
    assert ask("DELETE", f"tokens/{theirs}", first)[1]["code"] == "unknown_token"
    assert ask("DELETE", f"tokens/{page['tokens'][0]['token_id']}", first)[0] == 200
    assert [ask("GET", "whoami", token)[0] for token in (first, second)] == [200, 401]
    assert ask("POST", "tokens/revoke-all", first)[1] == {"revoked": 1}
    assert ask("GET", "whoami", first)[0] == 401
    with acting_as_system("test"):
        assert Token.objects.get(pk=theirs).revoked_at is None


def test_rotated_token_overlaps_with_its_successor(tenant: Tenant) -> None:
    old = make_token(tenant, "Kee", scopes=[Scope.INBOX], source_systems=["ci"])
    status, answer = ask("POST", "tokens/rotate", old, {"overlap_seconds": 60})
    assert status == 201
    assert ask("GET", "whoami", answer["token"])[1] == ask("GET", "whoami", old)[1]

    ask("POST", "tokens/rotate", answer["token"], {"overlap_seconds": 0})
    assert ask("GET", "whoami", answer["token"])[0] == 401


def test_rotation_never_lengthens_a_token(tenant: Tenant) -> None:
    now = timezone.now()
    ends = now + timedelta(minutes=5)
    make_token(tenant, "Kee", expires_at=ends)
    with acting_as_system("test"):
        (token,) = Token.objects.all()
        issued = services.rotate_token(token_id=token.pk, overlap=timedelta(days=1), now=now)
        token.refresh_from_db()
        assert (token.expires_at, issued.token.expires_at) == (ends, ends)
        services.revoke_token(token_id=token.pk, now=now)
        with pytest.raises(NotFound):
            services.rotate_token(token_id=token.pk, overlap=timedelta(0), now=now)
        assert Token.objects.count() == 2


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
    with acting_as_system("test"):
        assert text.split("_", 2)[2] not in str(fetch("select t::text from principals_token t"))


def test_invalid_tokens_get_one_answer(tenant: Tenant) -> None:
    revoked, expired = make_token(tenant, "A"), make_token(tenant, "B", expires_at=T0 + timedelta(seconds=1))
    disabled = make_token(tenant, "C")
    with acting_as_system("test"):
        services.revoke_token(token_id=Token.objects.get(principal__name="A").pk, now=T0)
        services.disable_principal(principal_id=Principal.objects.get(name="C").pk, now=T0)

    answers = [_whoami(token) for token in (revoked, expired, disabled, f"ght_00000000_{'x' * 43}", "nonsense", "")]

    assert {status for status, _ in answers} == {401}
    place = "http://testserver/.well-known/oauth-protected-resource"
    told = [Client().post(path).headers["WWW-Authenticate"] for path in ("/api/v1/tokens/rotate", "/mcp")]
    assert told == [f'Bearer realm="gatehouse", resource_metadata="{place}{path}"' for path in ("", "/mcp")]
    for path, resource in (("", "http://testserver"), ("/mcp", "http://testserver/mcp")):
        document = Client().get(f"{place}{path}").json()
        assert (document["resource"], document["authorization_servers"]) == (resource, ["http://testserver"])
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
