"""HTTP at both edges: who is calling, and where an outgoing call may go."""

import ipaddress
import socket
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from rest_framework.exceptions import NotAuthenticated
from rest_framework.request import Request

from apps.core.errors import Invalid
from apps.core.operations import Acting


def caller_of(request: Request) -> Acting:
    """Who the request's token stands for.

    :raises rest_framework.exceptions.NotAuthenticated: if it presents none.
    """
    caller: Any = request.user  # typed as Django's user; here it is what the authentication class answers
    if caller is None:
        raise NotAuthenticated
    acting: Acting = caller
    return acting


class ForbiddenEndpoint(Invalid):
    """An outgoing call would reach a place that this deployment does not call."""

    code = "forbidden_endpoint"


def guard(url: str) -> str:
    """Check where an outgoing call would go and return the address to connect to.

    Plain HTTP is for loopback only. Private, link-local and reserved ranges are refused, loopback unless
    `GATEHOUSE_ALLOW_LOOPBACK` (the default on a developer's machine).

    :raises ForbiddenEndpoint: naming the reason.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username or parts.password:
        raise ForbiddenEndpoint(f"{url[:200]!r} is no HTTP address.")
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as exc:
        raise ForbiddenEndpoint(f"{parts.hostname!r} can't be resolved.") from exc
    addresses = [ipaddress.ip_address(str(entry[4][0]).split("%")[0]) for entry in found]
    for address in addresses:
        if address.is_loopback and settings.ALLOW_LOOPBACK:
            continue
        if not address.is_global:
            raise ForbiddenEndpoint(f"{parts.hostname!r} is at {address}, which is not a public address.")
        if parts.scheme == "http":
            raise ForbiddenEndpoint("Plain HTTP is for loopback only.")
    return str(addresses[0])
