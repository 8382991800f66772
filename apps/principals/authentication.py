from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.http import HttpRequest
from django.utils import timezone
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from apps.principals import selectors, services
from apps.principals.models import Secret, read_secret
from apps.principals.tenancy import Caller


@dataclass(frozen=True, slots=True)
class PresentedToken:
    """A token as a request has shown it; whom it stands for is the database's to say."""

    secret: Secret

    def caller(self) -> Caller:
        """:raises AuthenticationFailed: if it is unknown, revoked, expired, or its principal disabled."""
        now = timezone.now()
        found = selectors.credential(self.secret.digest, now=now)
        if found is None:
            raise _invalid()
        if found.unnoted:
            _note_use(found.caller, now)
        return found.caller

    @contextmanager
    def acting(self, *, lock_timeout: str | None = None) -> Iterator[Caller]:
        """A transaction of the caller, who is found out by its beginning; see :func:`apps.principals.tenancy.acting_as`.

        :raises AuthenticationFailed: as :meth:`caller`.
        """
        now = timezone.now()
        with selectors.acting_by([self.secret], now=now, lock_timeout=lock_timeout) as credentials:
            found = credentials.get(self.secret)
            if found is None:
                raise _invalid()
            if not found.unnoted:
                yield found.caller
                return
        # Once a minute the longer way: the note is kept whatever becomes of the request, and makes nobody wait for it.
        _note_use(found.caller, now)
        with found.caller.acting(lock_timeout=lock_timeout):
            yield found.caller

    @property
    def company(self) -> Hashable:
        """Those of one tenant; a token that was not seen before has none."""
        return selectors.presumed_tenant(self.secret) or self

    @contextmanager
    def acting_with(
        self, others: Sequence["PresentedToken"], *, lock_timeout: str
    ) -> Iterator[Mapping["PresentedToken", Caller]]:
        """A transaction for several tokens, with the callers of those that are valid and whose use is noted."""
        secrets = [one.secret for one in others]
        with selectors.acting_by(secrets, now=timezone.now(), lock_timeout=lock_timeout) as found:
            yield {PresentedToken(secret): one.caller for secret, one in found.items() if not one.unnoted}


def _invalid() -> AuthenticationFailed:
    return AuthenticationFailed("The token is not valid.")


def _note_use(caller: Caller, now: datetime) -> None:
    if caller.token_id is not None:
        with caller.acting():
            services.note_use(token_id=caller.token_id, now=now)


class TokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer` and `X-Service-Token` carry the same kind of token."""

    def authenticate(self, request: Request) -> tuple[Caller, int | None] | None:
        presented = self.presented(request)
        if presented is None:
            return None
        caller = presented.caller()
        return caller, caller.token_id

    def presented(self, request: HttpRequest | Request) -> PresentedToken | None:
        """The token of a request, nobody's as yet; None if it presents none.

        :raises AuthenticationFailed: if what it presents has not the form of one.
        """
        text = _text(request)
        if text is None:
            return None
        secret = read_secret(text)
        if secret is None:
            raise _invalid()
        return PresentedToken(secret)

    def authenticate_header(self, request: HttpRequest | Request) -> str:
        """Says where a client learns from whom it gets a token (RFC 9728)."""
        resource = request.path if request.path == "/mcp" else ""
        metadata = request.build_absolute_uri(f"/.well-known/oauth-protected-resource{resource}")
        return f'Bearer realm="gatehouse", resource_metadata="{metadata}"'


def _text(request: HttpRequest | Request) -> str | None:
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
