"""Operators who log in at their own identity provider, by OpenID Connect; off unless the settings name one."""

import logging
from functools import cache
from typing import Any, Final

from authlib.integrations.base_client import OAuthError
from authlib.integrations.django_client import OAuth
from django.conf import settings
from django.contrib import messages
from django.contrib.auth import login
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import path, reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_safe
from joserfc.errors import JoseError
from requests.exceptions import RequestException

from apps.principals import services
from apps.principals.models import Membership, Operator
from apps.principals.tenancy import acting_as_system

logger = logging.getLogger(__name__)

_NEXT: Final = "oidc_next"
_SESSION_SECONDS: Final = 8 * 3600
_SUPERUSER: Final = "superuser"
# More than a username has room for.
_LONGEST_SUBJECT: Final = 140


@cache
def _provider() -> Any:
    if not settings.OIDC_ISSUER:
        raise Http404
    return OAuth().register(
        "oidc",
        client_id=settings.OIDC_CLIENT_ID,
        client_secret=settings.OIDC_CLIENT_SECRET,
        server_metadata_url=f"{settings.OIDC_ISSUER.rstrip('/')}/.well-known/openid-configuration",
        client_kwargs={"scope": "openid profile email", "code_challenge_method": "S256", "default_timeout": 10},
    )


@require_safe
def begin(request: HttpRequest) -> HttpResponse:
    """To the provider, with a state, a nonce and a PKCE challenge."""
    provider = _provider()
    request.session[_NEXT] = request.GET.get("next", "")
    try:
        answer: HttpResponse = provider.authorize_redirect(request, request.build_absolute_uri(reverse("signed_in")))
    except (RequestException, ValueError):
        logger.exception("oidc_provider_silent")
        return _refused(request, "Your identity provider does not answer.")
    return answer


@require_safe
def signed_in(request: HttpRequest) -> HttpResponse:
    """Back from it: whoever has a group that the settings name is logged in with what that gives."""
    claims_options = {"iss": {"values": [settings.OIDC_ISSUER]}, "aud": {"values": [settings.OIDC_CLIENT_ID]}}
    provider = _provider()
    try:
        token = provider.authorize_access_token(request, claims_options=claims_options)
        claims: dict[str, Any] = dict(token["userinfo"])
        if settings.OIDC_CLAIM not in claims:
            told = provider.userinfo(token=token)
            claims |= told if told.get("sub") == claims["sub"] else {}
    except (OAuthError, JoseError, RequestException, LookupError, ValueError):
        logger.warning("oidc_refused", exc_info=True)
        return _refused(request, "Your identity provider has not let you in. Try again.")
    operator = _admitted(claims)
    if operator is None:
        return _refused(request, "You have no account here. Ask an administrator.")
    onward = request.session.pop(_NEXT, "")
    login(request, operator, backend="django.contrib.auth.backends.ModelBackend")
    # Who has lost a group is asked again before long.
    request.session.set_expiry(_SESSION_SECONDS)
    safe = url_has_allowed_host_and_scheme(onward, {request.get_host()}, require_https=request.is_secure())
    return redirect(onward if safe else "admin:index")


def _admitted(claims: dict[str, Any]) -> Operator | None:
    subject, held = str(claims["sub"]), claims.get(settings.OIDC_CLAIM)
    groups = {held} if isinstance(held, str) else set(map(str, held)) if isinstance(held, list) else set()
    if len(subject) > _LONGEST_SUBJECT:
        return None
    rights = [
        right.strip()
        for group in sorted(groups & settings.OIDC_GROUPS.keys())
        for right in settings.OIDC_GROUPS[group].split(",")
    ]
    order = [role.value for role in Membership.Role]
    roles: dict[str, Membership.Role] = {}
    for slug, _, role in (right.partition(":") for right in rights):
        if role in order and order.index(role) >= order.index(roles.get(slug, order[0])):
            roles[slug] = Membership.Role(role)
    with acting_as_system("an operator signs in"):
        return services.admit_operator(
            # No name that a person can have otherwise: an account of the console is nobody else's.
            username=f"oidc/{subject}",
            email=str(claims.get("email", "")),
            is_superuser=_SUPERUSER in rights,
            roles=roles,
            groups=groups & settings.OIDC_GROUPS.keys(),
        )


def _refused(request: HttpRequest, why: str) -> HttpResponse:
    messages.error(request, why)
    return redirect("admin:login")


urlpatterns = [
    path("oidc/login", begin, name="sign_in"),
    path("oidc/callback", signed_in, name="signed_in"),
]
