"""HTTP at both edges: who is calling, and where an outgoing call may go."""

import ipaddress
import socket
from functools import partial
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import httpx2
from django.conf import settings
from django.http import HttpRequest
from rest_framework.exceptions import NotAuthenticated
from rest_framework.request import Request
from rest_framework.views import APIView

from apps.core.errors import Invalid
from apps.core.operations import Acting, Operation, permit
from apps.core.threads import in_thread


def caller_of(request: Request) -> Acting:
    """Who the request's token stands for.

    :raises rest_framework.exceptions.NotAuthenticated: if it presents none.
    """
    caller: Any = request.user  # typed as Django's user; here it is what the authentication class answers
    if caller is None:
        raise NotAuthenticated
    acting: Acting = caller
    return acting


async def authorize(view: APIView, request: Request, declared: Operation) -> Acting:
    """Do before a native async view what DRF does before its own: authentication, permission, throttles; then the scope.

    :raises rest_framework.exceptions.APIException: as DRF's own views.
    :raises MissingScope: if the caller may not call the operation.
    """
    await in_thread(partial(view.initial, request))
    caller = caller_of(request)
    permit(declared, caller)
    return caller


def renewed(view: APIView, request: HttpRequest) -> Acting:
    """Who the request's credential stands for at this moment; asked by whoever answers long after it was presented.

    :raises rest_framework.exceptions.APIException: if it stands no more.
    """
    again = view.initialize_request(request)
    view.perform_authentication(again)
    view.check_permissions(again)
    return caller_of(again)


class ForbiddenEndpoint(Invalid):
    """An outgoing call would reach a place that this deployment does not call."""

    code = "forbidden_endpoint"


class UnresolvedHost(ForbiddenEndpoint):
    """The name of the host leads nowhere just now."""


def guard(url: str) -> str:
    """Check where an outgoing call would go and return the address to connect to.

    Private, link-local and reserved ranges are refused, but for loopback where `GATEHOUSE_ALLOW_LOOPBACK` says so (the
    default on a developer's machine) and the networks of `GATEHOUSE_ALLOWED_NETWORKS`. Plain HTTP is for these only.

    :raises ForbiddenEndpoint: naming the reason.
    """
    parts = _read(url)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as exc:
        raise UnresolvedHost(f"{parts.hostname!r} can't be resolved.") from exc
    addresses = [ipaddress.ip_address(str(entry[4][0]).split("%")[0]) for entry in found]
    for address in addresses:
        if _is_allowed(address):
            continue
        if not _is_public(address):
            raise ForbiddenEndpoint(f"{parts.hostname!r} is at {address}, which is not a public address.")
        if parts.scheme == "http":
            raise ForbiddenEndpoint("Plain HTTP is for loopback and allowed networks only.")
    return str(addresses[0])


def _is_allowed(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether the operator has said that calls may go there."""
    if address.is_loopback and settings.ALLOW_LOOPBACK:
        return True
    return any(address in network for network in settings.ALLOWED_NETWORKS)


def _is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether it leads out to one host, also where it only wraps an address of the older kind."""
    if not address.is_global or address.is_multicast:
        return False
    if isinstance(address, ipaddress.IPv4Address):
        return True
    inner = _wrapped(address)
    return not address.is_site_local and (inner is None or _is_public(inner))


_WRAPPING: Final = tuple(
    ipaddress.IPv6Network(network) for network in ("::/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48")
)


def _wrapped(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    if any(address in network for network in _WRAPPING):
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)


def _read(url: str) -> SplitResult:
    """Look-ups read more spellings of an address than the client that calls: an octet with a leading zero is one."""
    try:
        httpx2.URL(url)
        parts = urlsplit(url)
    except (httpx2.InvalidURL, ValueError) as exc:
        raise ForbiddenEndpoint(f"{url[:200]!r} is no HTTP address.") from exc
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username or parts.password:
        raise ForbiddenEndpoint(f"{url[:200]!r} is no HTTP address.")
    return parts
