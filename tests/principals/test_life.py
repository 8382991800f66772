"""The life of a principal: disabled, enabled, renamed, its tokens rotated and revoked."""

import json
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from apps.core.errors import Conflict, NotFound
from apps.principals import services
from apps.principals.errors import UnknownPrincipal
from apps.principals.models import Principal, Tenant, Token
from apps.principals.scopes import Kind, Scope
from apps.principals.tenancy import acting_as, acting_as_system
from tests.factories import T0, make_caller, make_token


def ask(method: str, path: str, token: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
    answer = Client().generic(
        method,
        f"/api/v1/{path}",
        data="" if body is None else json.dumps(body),
        content_type="application/json",
        headers={"Authorization": f"Bearer {token}"},
    )
    return answer.status_code, answer.json()


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


def test_renamed_principal_keeps_its_token(tenant: Tenant, admin: str) -> None:
    kee = make_token(tenant, "Kee")
    assert ask("POST", "principals/Kee/rename", admin, {"new_name": "Kay"})[1]["name"] == "Kay"
    assert ask("GET", "whoami", kee)[1]["principal"] == "Kay"
    assert ask("POST", "principals/Kee/disable", admin)[1]["code"] == "unknown_principal"


def test_taken_or_unusable_name_is_refused(tenant: Tenant, admin: str) -> None:
    make_token(tenant, "Kee")
    make_token(tenant, "Hexy")
    status, answer = ask("POST", "principals/Kee/rename", admin, {"new_name": "Hexy"})
    assert (status, answer["code"]) == (409, "name_taken")
    assert ask("POST", "principals/Kee/rename", admin, {"new_name": "a/b"})[0] == 422
    assert ask("POST", "principals/Kee/rename", admin, {"new_name": "Kee"})[0] == 200
    with acting_as_system("test"):
        assert set(Principal.objects.values_list("name", flat=True)) >= {"Kee", "Hexy"}


@pytest.mark.parametrize("name", sorted(services.BUILT_IN))
def test_built_in_principal_is_not_changed(tenant: Tenant, name: str) -> None:
    with acting_as(make_caller(tenant)):
        gate = Principal.objects.get(name=name)
        with pytest.raises(Conflict, match="own principal"):
            services.disable_principal(principal_id=gate.pk, now=T0)
        with pytest.raises(Conflict, match="own principal"):
            services.rename_principal(principal_id=gate.pk, name="other")
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
