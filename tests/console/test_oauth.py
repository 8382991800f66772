"""Hosts that are let in by OAuth, and operators who log in at their own provider: as they see it."""

import asyncio
import base64
import hashlib
import queue
import re
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final
from unittest.mock import AsyncMock
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
import requests
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, Permission
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from mcp import Client as McpClient
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientMetadata
from oauth2_provider.cimd import SafeMetadataFetcher
from oauth2_provider.models import AccessToken, Application, Grant, RefreshToken
from playwright.sync_api import Browser

from apps.console import sign_in
from apps.principals import services
from apps.principals.models import Membership, Operator, Tenant, Token
from apps.principals.scopes import Kind
from apps.principals.tenancy import acting_as_system
from tests.console.test_browser import browser
from tests.factories import ask, make_principal, make_tenant, operator
from tests.server import Server

__all__ = ["browser"]

BACK: Final = "http://127.0.0.1:7777/callback"
VERIFIER: Final = "v" * 43
CHALLENGE: Final = base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).decode().rstrip("=")
AGENT: Final = ["inbox", "memory"]


@pytest.fixture
def host(db: None) -> str:
    """The id of a host that has registered itself."""
    given = {"client_name": "Hosty", "redirect_uris": [BACK], "token_endpoint_auth_method": "none"}
    answer = Client().post("/oauth/register", given, content_type="application/json")
    assert answer.status_code == 201
    return str(answer.json()["client_id"])


@pytest.fixture
def olga(tenant: Tenant) -> Client:
    """The browser of an operator of one tenant, which has the agent Kee; the agent Gus is another's."""
    make_principal(tenant, "Kee")
    make_principal(tenant, "hand", Kind.WORKER)
    make_principal(make_tenant("globex"), "Gus")
    return operator("connect_client", tenant=tenant)


def query(host: str, **changed: str | None) -> dict[str, str]:
    asked = {
        "response_type": "code",
        "client_id": host,
        "redirect_uri": BACK,
        "state": "s",
        "scope": " ".join(AGENT),
        "code_challenge": CHALLENGE,
        "code_challenge_method": "S256",
        "resource": "http://testserver/mcp",
    } | changed
    return {name: value for name, value in asked.items() if value is not None}


def consent(by: Client, host: str, principal: str = "acme/Kee", granted: list[str] = AGENT, **changed: Any) -> Any:
    """What the browser is answered when the form is sent."""
    asked = query(host, **changed)
    form = {**asked, "allow": "true", "principal": principal} | {f"may_{scope}": "on" for scope in granted}
    return by.post("/oauth/authorize", form, query_params=asked)


def sent_back(answer: Any) -> dict[str, str]:
    """The parameters with which the browser comes to the host."""
    assert answer.status_code == 302, answer.content
    assert answer.headers["Location"].startswith(BACK)
    return {name: value for name, (value,) in parse_qs(urlsplit(answer.headers["Location"]).query).items()}


def exchange(host: str, code: str, **changed: str) -> Any:
    given = {"grant_type": "authorization_code", "client_id": host, "code": code, "redirect_uri": BACK}
    return Client().post("/oauth/token", given | {"code_verifier": VERIFIER} | changed)


def refresh(host: str, token: str, **more: str) -> Any:
    return Client().post(
        "/oauth/token", {"grant_type": "refresh_token", "client_id": host, "refresh_token": token} | more
    )


def let_in(by: Client, host: str, **more: Any) -> dict[str, Any]:
    given = exchange(host, sent_back(consent(by, host, **more))["code"])
    assert given.status_code == 200, given.content
    return dict(given.json())


def reads(token: str) -> int:
    return ask("GET", "whoami", token)[0]


def test_host_that_was_let_in_acts_as_the_principal_with_what_was_granted(olga: Client, host: str) -> None:
    page = olga.get("/oauth/authorize", query(host))
    assert b"Read its inbox" in page.content
    assert b"acme/Kee" in page.content
    assert b"globex" not in page.content
    assert "form-action 'self' http://127.0.0.1:7777" in page.headers["Content-Security-Policy"]

    back = sent_back(consent(olga, host, granted=["inbox"]))
    assert (back["state"], back["iss"]) == ("s", "http://testserver")
    assert reads(f"code {back['code']}") == 401
    held = exchange(host, back["code"]).json()
    status, who = ask("GET", "whoami", held["access_token"])
    assert (status, who["principal"], who["tenant"], who["scopes"]) == (200, "Kee", "acme", ["inbox"])
    assert ask("GET", "tasks", held["access_token"])[0] == 403
    assert exchange(host, back["code"]).json()["error"] == "invalid_grant"


def test_host_may_be_known_by_the_address_of_its_metadata(olga: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    address = "https://host.example/client.json"
    document = {"client_id": address, "client_name": "Hosty", "redirect_uris": [BACK]}
    monkeypatch.setattr(SafeMetadataFetcher, "fetch", lambda _, client_id: (document, 300))
    assert consent(olga, "nobody").status_code == 200
    assert olga.get("/oauth/authorize", query(address)).status_code == 200
    assert reads(let_in(olga, address)["access_token"]) == 200
    assert olga.get("/oauth/authorize", query("https://other.example/client.json")).status_code == 400


def test_no_token_stands_in_the_database(olga: Client, host: str) -> None:
    held = let_in(olga, host)
    again = refresh(host, held["refresh_token"]).json()
    assert {row.token for model in (AccessToken, RefreshToken) for row in model.objects.all()} == {""}
    assert not Grant.objects.exists()
    assert reads(held["access_token"]) == 401
    assert reads(again["access_token"]) == 200
    with acting_as_system("test"):
        assert Token.objects.exclude(client="").count() == 1


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"code_challenge": None, "code_challenge_method": None}, "invalid_request"),
        ({"code_challenge": VERIFIER, "code_challenge_method": "plain"}, "invalid_request"),
        ({"resource": "https://elsewhere.example/mcp"}, "invalid_target"),
        ({"scope": "inbox admin"}, "invalid_scope"),
        ({"response_type": "token"}, "unauthorized_client"),
    ],
)
def test_unsound_request_ends_here_and_for_a_known_client_is_sent_back_with_its_error(
    olga: Client, host: str, changed: dict[str, Any], error: str
) -> None:
    shown = olga.get("/oauth/authorize", query(host, **changed))
    assert (shown.status_code, b"Nothing was granted" in shown.content) == (400, True)
    Application.objects.filter(client_id=host).update(registration_source="manual")
    assert f"error={error}" in olga.get("/oauth/authorize", query(host, **changed)).headers["Location"]
    answer = consent(olga, host, granted=changed.get("scope", "inbox").split(), **changed)
    if "resource" not in changed:
        assert f"error={error}" in answer.headers["Location"]
    else:
        assert exchange(host, sent_back(answer)["code"]).json()["error"] == error


def test_nobody_is_sent_to_an_address_that_was_not_registered_or_is_not_sound(olga: Client, host: str) -> None:
    Application.objects.filter(client_id=host).update(redirect_uris=f"{BACK} http://plain.example/")
    for address in ("https://evil.example/callback", "http://127.0.0.1:7777/other", "http://plain.example/"):
        assert olga.get("/oauth/authorize", query(host, redirect_uri=address)).status_code == 400
        assert consent(olga, host, redirect_uri=address).status_code == 400
    back = sent_back(consent(olga, host))
    assert exchange(host, back["code"], redirect_uri="https://evil.example/").status_code == 400
    assert exchange(host, back["code"], code_verifier="w" * 43).json()["error"] == "invalid_grant"


@pytest.mark.parametrize(
    ("path", "given", "error"),
    [
        ("register", b'{"redirect_uris": ["http://plain.example/"]}', "invalid_redirect_uri"),
        ("register", b'{"redirect_uris": 7}', "invalid_client_metadata"),
        *(("register", body, "invalid_client_metadata") for body in (b"[]", b"[" * 4000, b'{"client_name": null}')),
        ("register", b'{"client_name": "\\ud800"}', "invalid_client_metadata"),
        ("register", b'{"grant_types": ["password"]}', "invalid_client_metadata"),
        ("token", b"grant_type=urn:ietf:params:oauth:grant-type:device_code", "unsupported_grant_type"),
        ("token", b"grant_type=client_credentials", "unsupported_grant_type"),
        ("token", b"grant_type=refresh_token&client_id=%00", "invalid_request"),
        ("revoke", b"token=%00", "invalid_request"),
    ],
)
def test_unsound_request_for_a_client_or_token_is_refused(db: None, path: str, given: bytes, error: str) -> None:
    kind = "application/json" if path == "register" else "application/x-www-form-urlencoded"
    answer = Client().post(f"/oauth/{path}", given, content_type=kind)
    assert (answer.status_code, answer.json()["error"]) == (400, error)


def test_operator_lets_nobody_act_beyond_what_she_and_the_principal_may(
    olga: Client, host: str, tenant: Tenant
) -> None:
    viewer, stranger = operator("connect_client", tenant=tenant, role="viewer", name="vera"), Client()
    for by, principal, granted in (
        (olga, "globex/Gus", AGENT),
        (olga, "acme/delegate", AGENT),
        (olga, "acme/Kee", []),
        (olga, "acme/Kee", ["plans"]),
        (viewer, "acme/Kee", AGENT),
    ):
        assert consent(by, host, principal, granted).status_code == 200
    assert b"A worker can&#x27;t do this" in consent(olga, host, "acme/hand", ["plans"], scope="plans").content
    assert sent_back(olga.post("/oauth/authorize", query(host), query_params=query(host)))["error"] == "access_denied"
    Operator.objects.get(username="olga").user_permissions.clear()
    assert consent(olga, host).status_code == 403
    assert consent(stranger, host).headers["Location"].startswith("/admin/login/")
    with acting_as_system("test"):
        assert not Token.objects.exists()


def test_principal_is_named_alone_where_one_tenant_has_it(olga: Client, host: str) -> None:
    assert reads(let_in(olga, host, principal="Kee")["access_token"]) == 200
    with acting_as_system("test"):
        globex = Tenant.objects.get(slug="globex")
        person = Operator.objects.get(username="olga")
        Membership.objects.create(operator=person, tenant=globex, role=Membership.Role.OPERATOR)
    make_principal(globex, "Kee")
    assert b"write tenant/name" in consent(olga, host, "Kee").content


def test_console_adds_whom_a_client_acts_as_and_shows_and_removes_the_client(
    console: Client, olga: Client, tenant: Tenant, host: str
) -> None:
    sent = {"_form_submitted": "on", "reason": "ticket 7"}
    given = {"tenant": tenant.pk, "name": "Ada", "kind": "ai"}
    for said in ("Ada is a principal of acme.", "There is a principal &#x27;Ada&#x27; already."):
        page = console.post(reverse("admin:principals_principal_add_principal"), sent | given).headers["HX-Redirect"]
        assert said in console.get(page).content.decode()
    assert LogEntry.objects.get().change_message == "Add a principal: ticket 7"

    held = let_in(olga, host, principal="Ada")["access_token"]
    assert reads(held) == 200
    clients = reverse("admin:oauth2_provider_application_changelist")
    assert re.search(r"Ada.*olga", console.get(clients).content.decode(), re.DOTALL)
    removal = reverse("admin:oauth2_provider_application_remove", args=[Application.objects.get().pk])
    assert console.post(removal, sent).headers["HX-Redirect"] == clients
    assert reads(held) == 401


def test_consent_is_asked_each_time(olga: Client, host: str) -> None:
    let_in(olga, host)
    assert olga.get("/oauth/authorize", query(host) | {"approval_prompt": "auto"}).status_code == 200
    Application.objects.filter(client_id=host).update(skip_authorization=True)
    assert sent_back(olga.get("/oauth/authorize", query(host)))["error"] == "access_denied"


def test_refreshed_token_may_do_less_and_never_more(olga: Client, host: str) -> None:
    held = let_in(olga, host)
    less = refresh(host, held["refresh_token"], scope="inbox").json()
    assert ask("GET", "whoami", less["access_token"])[1]["scopes"] == ["inbox"]
    assert refresh(host, less["refresh_token"], scope="inbox memory").json()["error"] == "invalid_scope"
    assert ask("POST", "tokens/rotate", less["access_token"], {})[1]["code"] == "oauth_token"
    Client().post("/oauth/revoke", {"client_id": host, "token": held["refresh_token"]})
    assert reads(less["access_token"]) == 401


def revoke_here(held: dict[str, Any], host: str) -> None:
    with acting_as_system("test"):
        services.revoke_token(token_id=Token.objects.exclude(client="").get().pk, now=timezone.now())


def revoke_as_client(held: dict[str, Any], host: str) -> None:
    other = Application.objects.create(client_type="public", name="other").client_id
    for client, token in ((host, "unknown"), (other, held["refresh_token"]), (host, held["refresh_token"])):
        assert reads(held["access_token"]) == 200
        assert Client().post("/oauth/revoke", {"client_id": client, "token": token}).status_code == 200


def use_twice(held: dict[str, Any], host: str) -> None:
    held |= refresh(host, used := held["refresh_token"]).json()
    assert refresh(host, used).json()["error"] == "invalid_grant"


@pytest.mark.parametrize("end", [revoke_here, revoke_as_client, use_twice])
def test_end_of_a_grant_ends_token_and_refresh_at_once(olga: Client, host: str, end: Any) -> None:
    held = let_in(olga, host)
    end(held, host)
    assert reads(held["access_token"]) == 401
    assert refresh(host, held["refresh_token"]).status_code in {400, 401}


def test_expired_token_is_refused_until_refreshed_unless_the_person_is_gone(olga: Client, host: str) -> None:
    held = let_in(olga, host)
    with acting_as_system("test"):
        Token.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert reads(held["access_token"]) == 401
    held = refresh(host, held["refresh_token"]).json()
    assert reads(held["access_token"]) == 200
    Operator.objects.update(is_active=False)
    assert refresh(host, held["refresh_token"]).json()["error"] == "invalid_grant"


def test_self_registered_clients_are_bounded_and_forgotten(
    host: str, olga: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_in(olga, host)
    given = {"redirect_uris": [BACK], "client_name": "x"}
    with monkeypatch.context() as bounded:
        bounded.setattr("apps.console.oauth._MOST_UNUSED_CLIENTS", 1)
        answers = [Client().post("/oauth/register", given, content_type="application/json") for _ in range(2)]
        assert [answer.status_code for answer in answers] == [201, 401]
    much = given | {"tos_uri": "x" * 9000}
    assert Client().post("/oauth/register", much, content_type="application/json").status_code == 401
    with acting_as_system("test"):
        services.forget_lapsed(now=timezone.now() + timedelta(days=2))
        assert [row.client_id for row in Application.objects.all()] == [host]
        services.forget_lapsed(now=timezone.now() + timedelta(days=40))
        assert not Token.objects.exclude(client="").exists()


@pytest.fixture
def staffed(acme: Tenant) -> None:
    """Before the browser, whose event loop forbids the thread to query."""
    make_principal(acme, "Kee")
    Operator.objects.create_superuser(username="root", password="a long enough password")


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_official_sdk_connects_with_an_address_alone(server: Server, staffed: None, browser: Browser) -> None:
    to_open: queue.Queue[str] = queue.Queue()
    came_back: queue.Queue[str] = queue.Queue()
    listed: list[int] = []

    async def leave(url: str) -> None:
        to_open.put(url)

    async def back() -> AuthorizationCodeResult:
        told = parse_qs(urlsplit(await asyncio.to_thread(came_back.get, timeout=60)).query)
        return AuthorizationCodeResult(code=told["code"][0], state=told["state"][0], iss=told["iss"][0])

    async def connect() -> None:
        metadata = OAuthClientMetadata.model_validate({"client_name": "SDK", "redirect_uris": [BACK]})
        forgetful = AsyncMock(**{"get_tokens.return_value": None, "get_client_info.return_value": None})
        provider = OAuthClientProvider(f"{server.url}/mcp", metadata, forgetful, leave, back)
        async with (
            httpx2.AsyncClient(auth=provider, timeout=60) as http,
            McpClient(streamable_http_client(f"{server.url}/mcp", http_client=http)) as client,
        ):
            listed.append(len((await client.list_tools()).tools))
            provider.context.token_expiry_time = 1
            listed.append(len((await client.list_tools()).tools))

    page = browser.new_page()
    sdk = threading.Thread(target=asyncio.run, args=[connect()])
    sdk.start()
    page.goto(to_open.get(timeout=60))
    page.fill("input[name=username]", "root")
    page.fill("input[name=password]", "a long enough password")
    page.click("button[type=submit]")
    page.fill("input[name=principal]", "acme/Kee")
    with page.expect_request(lambda request: request.url.startswith(BACK)) as asked:
        page.click("button[name=allow]")
    came_back.put(asked.value.url)
    sdk.join(timeout=60)
    assert len(listed) == 2
    assert min(listed) > 0


@pytest.fixture
def provider(settings: Any) -> Iterator[str]:
    from oidc_provider_mock import User, run_server_in_thread  # noqa: PLC0415  # warns as it is loaded

    people = [
        User(sub="ann", claims={"email": "ann@acme.example", "groups": ["ops", "others"]}),
        User(sub="sue", claims={"groups": ["chiefs"]}),
        User(sub="bob", claims={"groups": ["others"]}),
    ]
    with run_server_in_thread(user_claims=people) as running:
        settings.OIDC_ISSUER = f"http://localhost:{running.server_port}"
        settings.OIDC_CLIENT_ID, settings.OIDC_CLIENT_SECRET = "gatehouse", "secret"
        settings.OIDC_GROUPS = {"ops": "acme:operator, nowhere:owner", "chiefs": "nowhere:viewer, superuser"}
        sign_in._provider.cache_clear()
        yield settings.OIDC_ISSUER
    sign_in._provider.cache_clear()


def log_in(client: Client, sub: str) -> Any:
    away = client.get("/oidc/login?next=/admin/principals/principal/").headers["Location"]
    back = requests.post(away, data={"sub": sub}, allow_redirects=False, timeout=10).headers["Location"]
    return client.get(back.removeprefix("http://testserver"))


# Of the stand-in for a provider, which goes by a former version of its library.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.usefixtures("provider")
def test_person_of_a_named_group_operates_what_the_group_gives(tenant: Tenant, settings: Any) -> None:
    Group.objects.create(name="ops").permissions.set(Permission.objects.filter(codename="view_principal"))
    make_principal(tenant, "Kee")
    ann, bob, sue = Client(), Client(), Client()
    assert b"Log in at your identity provider" in ann.get("/admin/login/").content
    assert log_in(ann, "ann").headers["Location"] == "/admin/principals/principal/"
    assert b"Kee" in ann.get("/admin/principals/principal/").content
    with acting_as_system("test"):
        assert str(Membership.objects.get()) == "oidc/ann in acme as operator"

    assert log_in(bob, "bob").headers["Location"] == "/admin/login/"
    assert b"You have no account here" in bob.get("/admin/login/").content
    log_in(sue, "sue")
    assert Operator.objects.get(is_superuser=True).username == "oidc/sue"
    assert bob.get("/oidc/callback?code=x&state=y").headers["Location"] == "/admin/login/"

    settings.OIDC_GROUPS = {"chiefs": "superuser"}
    log_in(Client(), "ann")
    assert ann.get("/admin/").status_code == 302


def test_without_a_provider_there_is_no_such_door(db: None) -> None:
    assert b"identity provider" not in Client().get("/admin/login/").content
    assert Client().get("/oidc/login").status_code == 404
