"""OAuth 2.1: how a host is let in without a token being copied. What a client holds is a token like any other.

The library keeps the protocol's own books: clients, codes, refresh tokens. Whom a client acts as, and what it may do,
stands in the token alone, so that every rule of tokens holds for it. Between consent and exchange that token has a
text which only the code leads to.
"""

import hashlib
import re
from base64 import b64decode
from collections.abc import Collection, Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final

from csp.constants import SELF
from csp.decorators import csp_update
from django import forms
from django.contrib import admin
from django.contrib.admin.models import CHANGE, LogEntry
from django.db import transaction
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.urls import include, path
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.views.decorators.csrf import csrf_exempt
from oauth2_provider import views
from oauth2_provider.exceptions import OAuthToolkitError
from oauth2_provider.forms import AllowForm
from oauth2_provider.models import AccessToken, Application, RefreshToken
from oauth2_provider.oauth2_validators import OAuth2Validator, validate_resource_as_url_prefix
from oauth2_provider.scopes import BaseScopes
from oauth2_provider.settings import oauth2_settings
from oauthlib.oauth2.rfc6749 import errors
from unfold.widgets import UnfoldAdminTextInputWidget, UnfoldBooleanWidget

from apps.core import strict_json
from apps.core.errors import DomainError
from apps.core.sql import SYSTEM, fetch, logged_in_as
from apps.principals import selectors, services
from apps.principals.models import Operator, Principal, Secret, new_secret, unpresentable
from apps.principals.scopes import Kind, Scope, forbidden_to
from apps.principals.selectors import operated_tenants
from apps.principals.tenancy import acting_as_operator, acting_as_system, acting_in

# Given by the command line alone: to administer, and to post in a source's name.
_OF_THE_SHELL: Final = frozenset({Scope.ADMIN, Scope.RECEIPTS_WRITE})
_SHOWN: Final = 200
_MOST_UNUSED_CLIENTS: Final = 1000
_MOST_METADATA: Final = 8192
# What the library has room for.
_LONGEST: Final = {
    "client_id": 255,
    "client_name": 255,
    "code": 255,
    "nonce": 255,
    "code_challenge": 128,
    "code_challenge_method": 10,
}
# What a code may be sent to: this machine, a place behind TLS, or one of two editors.
_SOUND_REDIRECT: Final = re.compile(
    r"https://[\w.:-]+(/\S*)?|http://(127\.0\.0\.1|localhost|\[::1\])(:\d+)?(/\S*)?|(cursor|vscode)://\S*", re.ASCII
)


def access_token(request: Any, refresh_token: Any = False) -> str:  # noqa: FBT002  # oauthlib's signature
    """The text of a fresh token."""
    return new_secret().text


def _refuse_elsewhere(resources: Collection[str], here: str, **more: Any) -> None:
    """Tokens of ours are for us alone (RFC 8707)."""
    try:
        ours = all(validate_resource_as_url_prefix(resource, [here]) for resource in resources)
    except ValueError:  # no address
        ours = False
    if not ours:
        raise errors.CustomOAuth2Error("invalid_target", f"Tokens are given for {here} alone.", **more)


class Scopes(BaseScopes):  # type: ignore[misc]  # the library has no types
    """What may be asked for."""

    def get_all_scopes(self) -> dict[str, str]:
        return dict(Scope.choices)

    def get_available_scopes(self, application: Any = None, request: Any = None, **_: Any) -> list[str]:
        return sorted(set(Scope) - _OF_THE_SHELL)

    def get_default_scopes(self, application: Any = None, request: Any = None, **_: Any) -> list[str]:
        return self.get_available_scopes()


class HasRoom:
    """Any host may register itself. It can do nothing before somebody lets it in, so only their number is bounded."""

    def has_permission(self, request: Any, client_id: str = "") -> bool:
        if not client_id and len(request.body) > _MOST_METADATA:
            return False
        by_themselves = Application.objects.exclude(registration_source=Application.RegistrationSource.MANUAL)
        unused: int = by_themselves.filter(refreshtoken=None)[:_MOST_UNUSED_CLIENTS].count()
        return unused < _MOST_UNUSED_CLIENTS


class Validator(OAuth2Validator):  # type: ignore[misc]  # the library has no types
    """Writes with each code and token of the library the token that stands for a principal."""

    def validate_redirect_uri(self, client_id: str, redirect_uri: str, request: Any, *args: Any, **more: Any) -> bool:
        sound = _SOUND_REDIRECT.fullmatch(redirect_uri) is not None
        return sound and bool(super().validate_redirect_uri(client_id, redirect_uri, request, *args, **more))

    def _validate_resource_uris(self, request: Any, resources: Collection[str]) -> None:
        super()._validate_resource_uris(request, resources)
        asked = HttpRequest()
        asked.META = request.headers
        scheme = "https" if "X_DJANGO_OAUTH_TOOLKIT_SECURE" in asked.META else "http"
        _refuse_elsewhere(resources, f"{scheme}://{asked.get_host()}", request=request)

    def _create_authorization_code(self, request: Any, code: Any, expires: datetime | None = None) -> Any:
        principal: Principal | None = getattr(request, "principal", None)
        if principal is None:
            raise errors.AccessDeniedError(request=request)
        with transaction.atomic():
            grant = super()._create_authorization_code(request, code, expires)
            with acting_in(principal.tenant_id, "oauth: a client is let in"):
                services.issue_token(
                    principal=principal,
                    scopes=[Scope(scope) for scope in request.scopes],
                    label=f"{request.client.name or request.client.client_id}, let in by {request.user}"[:100],
                    expires_at=grant.expires,
                    secret=unpresentable("code", code["code"]),
                    client=request.client.client_id,
                    now=timezone.now(),
                )
            said = f"Let {request.client} act for it: {', '.join(request.scopes)}"
            LogEntry.objects.log_actions(request.user.pk, [principal], CHANGE, said, single_object=True)
        return grant

    def _create_access_token(self, expires: datetime, request: Any, token: Any, *args: Any, **more: Any) -> Any:
        row = super()._create_access_token(expires, request, token, *args, **more)
        self._renew(expires, request, token)
        return row

    def _renew(self, expires: datetime, request: Any, token: Any) -> None:
        refreshed = request.grant_type == "refresh_token"
        former = request.former if refreshed else unpresentable("code", request.code).digest
        found = selectors.credential(former, now=None)
        if found is None or found.caller.token_id is None:
            raise errors.InvalidGrantError(request=request)
        try:
            with found.caller.acting():
                services.renew_token(
                    token_id=found.caller.token_id,
                    former=former,
                    secret=Secret(token["access_token"]),
                    scopes=token["scope"].split(),
                    expires_at=expires,
                )
        except DomainError as refusal:
            raise errors.InvalidGrantError(request=request) from refusal

    def validate_refresh_token(self, refresh_token: str, client: Any, request: Any, *args: Any, **more: Any) -> bool:
        """A token that was revoked here, or whose person's account is closed, is not refreshed."""
        checksum = hashlib.sha256(refresh_token.encode()).hexdigest()
        shown = RefreshToken.objects.filter(token_checksum=checksum)
        family = AccessToken.objects.filter(refresh_token__token_family__in=shown.values("token_family"))
        of_family = list(family.values_list("token_checksum", flat=True))
        if not super().validate_refresh_token(refresh_token, client, request, *args, **more):
            if shown.exclude(revoked=None).exists():
                _end(of_family)  # somebody has a copy of what was used before
            return False
        request.former = bytes.fromhex(request.refresh_token_instance.access_token.token_checksum)
        return request.user.is_active and selectors.credential(request.former, now=None) is not None

    def revoke_token(self, token: str, token_type_hint: str, request: Any, *args: Any, **more: Any) -> None:
        checksum = hashlib.sha256(token.encode()).hexdigest()
        # One that was refreshed since ends what came of it, too.
        families = RefreshToken.objects.filter(token_checksum=checksum).values("token_family")
        named = Q(token_checksum=checksum) | Q(refresh_token__token_family__in=families)
        held = AccessToken.objects.filter(named, application=request.client)
        with transaction.atomic():
            _end(list(held.values_list("token_checksum", flat=True)))
            super().revoke_token(token, token_type_hint, request, *args, **more)


def _end(checksums: Sequence[str]) -> None:
    for checksum in checksums:
        found = selectors.credential(bytes.fromhex(checksum), now=None)
        if found and found.caller.token_id is not None:
            with found.caller.acting():
                services.revoke_token(token_id=found.caller.token_id, now=timezone.now())


class ConsentForm(AllowForm):  # type: ignore[misc]  # the library has no types
    principal = forms.CharField(
        required=False,
        label="Acts as",
        help_text="A principal of one of your tenants: its name, or tenant/name if several have one.",
        widget=UnfoldAdminTextInputWidget(attrs={"list": "principals", "autocomplete": "off"}),
    )

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        for scope in (self["scope"].value() or "").split():
            if scope in Scope:
                words = Scope(scope).label
                field = forms.BooleanField(required=False, initial=True, label=words, widget=UnfoldBooleanWidget())
                self.fields[f"may_{scope}"] = field

    def clean_client_id(self) -> str:
        client_id: str = self.cleaned_data["client_id"]
        if not Application.objects.filter(client_id=client_id).exists():
            raise forms.ValidationError("There is no such client.")
        return client_id

    def granted(self) -> list[str]:
        return [name.removeprefix("may_") for name, given in self.cleaned_data.items() if given and name[:4] == "may_"]


def _refused(error: str, why: str) -> JsonResponse:
    return JsonResponse({"error": error, "error_description": why}, status=HTTPStatus.BAD_REQUEST)


class Sound:
    """Refuses what no request of the protocol holds, before the library reads it."""

    def dispatch(self, request: HttpRequest, *args: Any, **more: Any) -> HttpResponseBase:
        scheme, _, presented = request.headers.get("Authorization", "").partition(" ")
        try:
            held = [("", b64decode(presented).decode())] if scheme.lower() == "basic" else []
        except ValueError:
            return _refused("invalid_request", "Authorization is not base64 of UTF-8.")
        for query in (request.GET, request.POST):
            held += [(name, value) for name, values in query.lists() for value in values]
        for name, value in held:
            if "\x00" in value or len(value) > _LONGEST.get(name, _MOST_METADATA):
                return _refused("invalid_request", f"{name or 'Authorization'} is too long, or holds NUL.")
        with logged_in_as(SYSTEM):
            answer: HttpResponseBase = super().dispatch(request, *args, **more)  # type: ignore[misc]  # a view's
        return answer


# By a client, whom no cookie lets in.
@method_decorator(csrf_exempt, name="dispatch")
class OneByOne(Sound):
    """Serves one request of a client at a time: of a refresh and a revocation one finds what the other has done."""

    def dispatch(self, request: HttpRequest, *args: Any, **more: Any) -> HttpResponseBase:
        client = request.POST.get("client_id") or request.headers.get("Authorization", "")
        with acting_as_operator([], "oauth"):
            fetch("select pg_advisory_xact_lock(hashtextextended(%s, 6))", [client.replace("\x00", "")])
            return super().dispatch(request, *args, **more)


class ConsentView(Sound, views.AuthorizationView):  # type: ignore[misc]  # the library has no types
    """Where an operator lets a client act as a principal of a tenant that she operates, or does not."""

    template_name = "console/consent.html"
    form_class = ConsentForm
    principal: Principal | None = None

    def dispatch(self, request: HttpRequest, *args: Any, **more: Any) -> HttpResponseBase:
        if request.user.is_authenticated and not (
            admin.site.has_permission(request) and request.user.has_perm("principals.connect_client")
        ):
            why = "Your account may not let clients in. Ask an administrator for that permission."
            return self.render_to_response({"error": {"error": "access_denied", "description": why}}, status=403)
        response: HttpResponseBase = super().dispatch(request, *args, **more)
        return response

    def get(self, request: HttpRequest, *args: Any, **more: Any) -> HttpResponse:
        # A client that could ask for no question to be asked would be let in unseen.
        asked = request.GET.copy()
        asked.pop("approval_prompt", None)
        # Nor is anybody sent on without a word of this server.
        asked.pop("prompt", None)
        request.GET = asked  # type: ignore[assignment]  # a mutable one does
        response: HttpResponse = super().get(request, *args, **more)
        return response

    def validate_authorization_request(self, request: HttpRequest) -> Any:
        scopes, credentials = super().validate_authorization_request(request)
        back = {"state": credentials.get("state")}
        try:
            if credentials.get("code_challenge_method") != "S256":
                raise errors.InvalidRequestError("PKCE with S256 is needed: code_challenge_method=S256.", **back)
            _refuse_elsewhere(request.GET.getlist("resource"), request.build_absolute_uri("/").rstrip("/"), **back)
        except errors.OAuth2Error as refusal:
            raise OAuthToolkitError(error=refusal, redirect_uri=credentials["redirect_uri"]) from refusal
        return scopes, credentials

    def form_valid(self, form: ConsentForm) -> HttpResponse:
        if not form.cleaned_data["allow"]:
            return super().form_valid(form)  # type: ignore[no-any-return]
        tenant, _, name = form.cleaned_data["principal"].rpartition("/")
        with self._sight():
            meant = self._principals().filter(name=name, **({"tenant__slug": tenant} if tenant else {}))[:2]
            self.principal = meant[0] if len(meant) == 1 else None
        granted = form.granted()
        if self.principal is None:
            several = "Several of your tenants have one of this name: write tenant/name."
            form.add_error(
                "principal", several if meant else "There is no such principal in a tenant that you operate."
            )
        elif refused := forbidden_to(Kind(self.principal.kind), frozenset(map(Scope, granted))):
            for scope in refused:
                form.add_error(f"may_{scope}", f"A {self.principal.kind} can't do this.")
        if not granted:
            form.add_error(None, "Leave it at least one thing to do, or refuse.")
        if form.errors:
            return self.form_invalid(form)  # type: ignore[no-any-return]
        form.cleaned_data["scope"] = " ".join(granted)
        return super().form_valid(form)  # type: ignore[no-any-return]

    def create_authorization_response(self, request: HttpRequest, scopes: str, credentials: Any, allow: Any) -> Any:
        credentials["principal"] = self.principal
        return super().create_authorization_response(request, scopes, credentials, allow)

    def error_response(self, error: OAuthToolkitError, application: Any, **more: Any) -> HttpResponse:
        """Sends a person on who refuses. An unsound request ends here if its client registered itself: it may have been
        made so that this server sends people there (RFC 9700, 4.11.2).
        """
        refusal, client_id = error.oauthlib_error, self.request.POST.get("client_id", self.request.GET.get("client_id"))
        by_itself = Application.objects.exclude(registration_source=Application.RegistrationSource.MANUAL)
        if not isinstance(refusal, errors.AccessDeniedError) and by_itself.filter(client_id=client_id).exists():
            return self.render_to_response({"error": refusal}, status=HTTPStatus.BAD_REQUEST)
        response: HttpResponse = super().error_response(error, application, **more)
        return response

    def get_context_data(self, **more: Any) -> dict[str, Any]:
        context: dict[str, Any] = super().get_context_data(**more)
        form = context["form"]
        with self._sight():
            names = [f"{principal.tenant}/{principal}" for principal in self._principals()[:_SHOWN]]
        return {
            **context,
            "client": Application.objects.filter(client_id=form["client_id"].value()).first(),
            "may": [form[name] for name in form.fields if name.startswith("may_")],
            "names": names,
        }

    def render_to_response(self, context: Any, **more: Any) -> HttpResponse:
        """A form may be sent to this server alone, but that browsers check where the answer leads, too."""
        context = {**admin.site.each_context(self.request), "title": "Let a client in", **context}
        response: HttpResponse = super().render_to_response(context, **more).render()
        scheme, _, rest = (context["form"]["redirect_uri"].value() or "" if "form" in context else "").partition("://")
        leads_to = [f"{scheme}://{rest.partition('/')[0]}" if scheme.startswith("http") else f"{scheme}:"]
        policy = {"form-action": [SELF, *(leads_to if scheme else [])]}
        return csp_update(policy)(lambda _: response)(self.request)  # type: ignore[return-value]  # the response itself

    def _sight(self) -> Any:
        operator = self.request.user
        assert isinstance(operator, Operator)  # noqa: S101  # dispatch has seen to it
        why = f"console: {operator.username}"
        if operator.is_superuser:
            return acting_as_system(why)
        return acting_as_operator(operated_tenants(operator), why)

    def _principals(self) -> QuerySet[Principal]:
        usable = Principal.objects.enabled().exclude(name__in=services.BUILT_IN)
        return usable.select_related("tenant").order_by("tenant__slug", "name")


class TokenView(OneByOne, views.TokenView):  # type: ignore[misc]  # the library has no types
    """Gives the tokens that the metadata names. Answers JSON, which the library does not say of every refusal."""

    def post(self, request: HttpRequest, *args: Any, **more: Any) -> HttpResponse:
        if request.POST.get("grant_type") not in oauth2_settings.OAUTH2_GRANT_TYPES_SUPPORTED:
            return _refused("unsupported_grant_type", "See the metadata of this server.")
        response: HttpResponse = super().post(request, *args, **more)
        response.headers["Content-Type"] = "application/json"
        return response


class RevokeView(OneByOne, views.RevokeTokenView):  # type: ignore[misc]  # the library has no types
    """As the library's."""


@method_decorator(csrf_exempt, name="dispatch")
class RegistrationView(Sound, views.DynamicClientRegistrationView):  # type: ignore[misc]  # the library has no types
    """Takes clients that a person lets in, and whose codes go to sound places."""

    def post(self, request: HttpRequest, *args: Any, **more: Any) -> HttpResponse:
        try:
            given = strict_json.loads(request.body)
        except DomainError as refusal:
            return _refused("invalid_client_metadata", refusal.detail)
        name = given.get("client_name", "") if isinstance(given, dict) else None
        if not isinstance(name, str) or len(name) > _LONGEST["client_name"]:
            return _refused(
                "invalid_client_metadata", "An object is expected; a client_name is a text of 255 characters."
            )
        if set(_texts(given.get("grant_types"))) - {"authorization_code", "refresh_token"}:
            return _refused("invalid_client_metadata", "A client that registers itself uses authorization_code.")
        if not all(_SOUND_REDIRECT.fullmatch(one) for one in _texts(given.get("redirect_uris"))):
            why = "A redirect leads to https://, to this machine, or to cursor:// or vscode://."
            return _refused("invalid_redirect_uri", why)
        response: HttpResponse = super().post(request, *args, **more)
        return response


def _texts(value: Any) -> list[str]:
    """Those of a list; what is none, the library refuses."""
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


_METADATA: Final = views.OAuthProtectedResourceMetadataView.as_view()
_NAMED: Final = [
    path(
        ".well-known/oauth-authorization-server", views.OAuthServerMetadataView.as_view(), name="oauth-server-metadata"
    ),
    path(".well-known/oauth-protected-resource", _METADATA, name="oauth-resource-metadata"),
    path(".well-known/oauth-protected-resource/mcp", _METADATA),
    path("oauth/authorize", ConsentView.as_view(), name="authorize"),
    path("oauth/token", TokenView.as_view(), name="token"),
    path("oauth/revoke", RevokeView.as_view(), name="revoke-token"),
    path("oauth/register", RegistrationView.as_view(), name="dcr-register"),
    path(
        "oauth/register/<str:client_id>",
        views.DynamicClientRegistrationManagementView.as_view(http_method_names=["get"]),
        name="dcr-register-management",
    ),
]
urlpatterns = [path("", include((_NAMED, "oauth2_provider")))]
