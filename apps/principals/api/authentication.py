from typing import Any

from django.utils import timezone
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from apps.principals import selectors, services
from apps.principals.secrets import read_secret
from apps.principals.tenancy import Caller


class TokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer` and `X-Service-Token` carry the same kind of token."""

    def authenticate(self, request: Request) -> tuple[Caller, int | None] | None:
        text = _presented(request)
        if text is None:
            return None
        secret = read_secret(text)
        now = timezone.now()
        found = selectors.credential(secret, now=now) if secret else None
        if found is None:
            raise AuthenticationFailed("The token is not valid.")
        caller = found.caller
        if found.unnoted and caller.token_id is not None:
            with caller.acting():
                services.note_use(token_id=caller.token_id, now=now)
        return caller, caller.token_id

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="gatehouse"'


def _presented(request: Request) -> str | None:
    # Not by `headers`, which are all read before one is answered.
    service: str | None = request.META.get("HTTP_X_SERVICE_TOKEN")
    if service is not None:
        return service
    scheme, _, text = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
    return text.strip() if scheme.lower() == "bearer" else None


class TokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]  # its registration by subclassing has no types
    """Both headers in the OpenAPI document; either suffices."""

    target_class = TokenAuthentication
    name = ["bearer", "serviceToken"]

    def get_security_definition(self, auto_schema: Any) -> list[dict[str, str]]:
        return [
            {"type": "http", "scheme": "bearer", "description": "A token: ght_<prefix>_<secret>."},
            {"type": "apiKey", "in": "header", "name": "X-Service-Token", "description": "The same token."},
        ]

    def get_security_requirement(self, auto_schema: Any) -> list[dict[str, list[str]]]:
        return [{name: []} for name in self.name]
