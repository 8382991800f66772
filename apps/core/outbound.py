"""Outgoing HTTP: one checked address, no redirects, bounded in time and size. Call it outside of transactions."""

import asyncio
import functools
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Final
from urllib.parse import SplitResult, urlsplit

import anyio
import anyio.to_thread
import httpx2
from django.conf import settings

from apps.core.errors import Invalid
from apps.core.strict_json import storable

_CONNECT_SECONDS: Final = 5.0
_MESSAGE: Final = 2_000
_LOOPBACK_NAMES: Final = frozenset({"localhost", "localhost.localdomain"})


class CallFailed(Exception):
    """An outgoing call brought no answer that can be used; `str()` says what happened, without what was sent.

    `reached`: the other side may have received and acted on the call.
    """

    code: str = "call_failed"
    reached: ClassVar[bool] = True


class ForbiddenEndpoint(Invalid, CallFailed):
    """This deployment does not call that address; nothing was sent."""

    code = "forbidden_endpoint"
    reached = False


class Unreachable(CallFailed):
    """The name can't be resolved, or nobody accepts connections there; nothing was sent."""

    code = "unreachable"
    reached = False


class UnresolvedHost(Unreachable, Invalid):
    """The name of the host leads nowhere just now."""


class Disconnected(CallFailed):
    """The connection broke, or what came over it is not HTTP."""

    code = "disconnected"


class TimedOut(CallFailed):
    """No whole answer by the deadline."""

    code = "timed_out"


class Redirected(CallFailed):
    """The other side sends callers elsewhere; redirects are never followed."""

    code = "redirected"


class AnswerTooLarge(CallFailed):
    """The answer is over the limit."""

    code = "answer_too_large"


class NotMCP(CallFailed):
    """Something answers there, but it does not speak MCP."""

    code = "not_mcp"


class Refused(CallFailed):
    """The endpoint speaks MCP and refuses what it was asked.

    `broke`: the endpoint reports a defect of its own, so the same call may succeed later.
    """

    code = "refused"

    def __init__(self, message: str, *, mcp_code: int = 0, broke: bool = False) -> None:
        super().__init__(message)
        self.mcp_code = mcp_code
        self.broke = broke


class GivenUp(CallFailed):
    """The caller did not want the answer any more."""

    code = "given_up"


def legible(text: str) -> str:
    """Another's words as the database and a reader can take them: nothing that can't be stored, not too many."""
    return storable(text[:_MESSAGE])


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back, of whatever status."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


def send(
    url: str,
    *,
    headers: Mapping[str, str],
    deadline: timedelta,
    body: bytes | None = None,
    max_answer_bytes: int = 64 * 1024,
) -> Answer:
    """Post a body, or get a document if there is none, and wait for the whole answer.

    Blocks for no longer than the deadline in all, the name's look-up included, and must not be called from an event loop.

    :param max_answer_bytes: of none at all, the answer is there with its head, whatever body it has.
    :raises CallFailed: one of its kinds.
    """

    async def bounded() -> Answer:
        with anyio.fail_after(deadline.total_seconds()):
            address = await anyio.to_thread.run_sync(guard, url, abandon_on_cancel=True)
            wire = PinnedTransport(address=address, url=httpx2.URL(url), max_bytes=max_answer_bytes)
            # The deadline bounds everything else.
            timeout = httpx2.Timeout(None, connect=_CONNECT_SECONDS)
            plain = {**headers, "Accept-Encoding": "identity"}
            async with (
                httpx2.AsyncClient(transport=wire, timeout=timeout) as client,
                client.stream("GET" if body is None else "POST", url, content=body, headers=plain) as response,
            ):
                # Raw: a body that is compressed against our word stays as small as it came.
                content = b"".join([chunk async for chunk in response.aiter_raw()]) if max_answer_bytes else b""
                return Answer(status=response.status_code, headers=dict(response.headers), body=content)

    try:
        return asyncio.run(bounded())
    except TimeoutError as exc:
        raise TimedOut(f"No whole answer within {deadline.total_seconds():g} s.") from exc
    except httpx2.InvalidURL as exc:
        raise ForbiddenEndpoint("This is no HTTP address.") from exc
    except httpx2.HTTPError as exc:
        raise Disconnected("The connection broke before the whole answer was there.") from exc


class PinnedTransport(httpx2.AsyncBaseTransport):
    """HTTP to one checked address, for one call: no other host, no redirect, no more bytes than allowed.

    A client above may swallow or rename what breaks its streams, so the first fault is kept here.
    """

    def __init__(self, *, address: str, url: httpx2.URL, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.fault: CallFailed | None = None
        self._address = address
        self._origin = (url.scheme, url.host, url.port)
        self._left = max_bytes
        self._http = httpx2.AsyncHTTPTransport(verify=_trust() if url.scheme == "https" else False)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        url = request.url
        if (url.scheme, url.host, url.port) != self._origin:
            raise self._note(Redirected("The call left the address that was checked."))
        # The Host header and the certificate stay the name's; the connection goes to the address that was checked.
        request.extensions = {**request.extensions, "sni_hostname": url.host}
        request.url = url.copy_with(host=self._address)
        try:
            response = await self._http.handle_async_request(request)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as exc:
            raise self._note(Unreachable(f"{url.host} does not accept connections.")) from exc
        except httpx2.TransportError as exc:
            raise self._note(Disconnected(f"The connection to {url.host} broke.")) from exc
        finally:
            request.url = url
        if response.has_redirect_location:
            await response.aclose()
            raise self._note(Redirected(f"{url.host} redirects; redirects are not followed."))
        response.stream = _Counted(response.stream, self)
        return response

    def count(self, received: int) -> None:
        self._left -= received
        if self._left < 0:
            raise self._note(AnswerTooLarge(f"The answer is over {self.max_bytes} bytes."))

    def _note(self, fault: CallFailed) -> CallFailed:
        self.fault = self.fault or fault
        return fault

    async def aclose(self) -> None:
        await self._http.aclose()


class _Counted(httpx2.AsyncByteStream):
    def __init__(self, inner: Any, wire: PinnedTransport) -> None:
        self._inner = inner
        self._wire = wire

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._inner:
            self._wire.count(len(chunk))
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()


@functools.cache
def _trust() -> ssl.SSLContext:
    return ssl.create_default_context()


def _split(url: str) -> SplitResult | None:
    """The parts of an HTTP address without credentials and fragment; None if it is none."""
    try:
        httpx2.URL(url)  # look-ups read more forms of an address than the client does: an octet may begin with a zero
        parts = urlsplit(url)
        is_usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except (httpx2.InvalidURL, ValueError):
        return None
    return parts if is_usable and not (parts.username or parts.password or parts.fragment) else None


def fault_of(url: str) -> str | None:
    """What is wrong with an address by its text alone, in words that follow it; names are looked up at each call."""
    parts = _split(url)
    if parts is None:
        return "is no HTTP address, or holds credentials or a fragment"
    host = parts.hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        # A name may lead into an allowed network.
        is_allowed, is_public = bool(settings.ALLOWED_NETWORKS), True
        if host.casefold().rstrip(".") in _LOOPBACK_NAMES:
            is_allowed = is_public = settings.ALLOW_LOOPBACK
    else:
        is_allowed = _is_allowed(address)
        is_public = is_allowed or _is_public(address)
    if not is_public:
        return "is not a public address"
    is_plain = parts.scheme == "http" and not is_allowed
    return "is plain HTTP, which is for loopback and allowed networks only" if is_plain else None


def guard(url: str) -> str:
    """Check where an outgoing call would go and return the address to connect to.

    Private, link-local and reserved ranges are refused, but for loopback where `GATEHOUSE_ALLOW_LOOPBACK` says so (the
    default on a developer's machine) and the networks of `GATEHOUSE_ALLOWED_NETWORKS`. Plain HTTP is for these only.

    :raises ForbiddenEndpoint: naming the reason.
    :raises UnresolvedHost: if there is no such name just now.
    """
    parts = _split(url)
    if parts is None:
        raise ForbiddenEndpoint(f"{url[:200]!r} is no HTTP address.")
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
    if not address.is_global or address.is_multicast or any(address in network for network in _RESERVED):
        return False
    if isinstance(address, ipaddress.IPv4Address):
        return True
    inner = _wrapped(address)
    return not address.is_site_local and (inner is None or _is_public(inner))


# Networks that are not public, though `is_global` says so in some versions of Python.
_RESERVED: Final = tuple(
    ipaddress.ip_network(network) for network in ("192.0.0.0/24", "64:ff9b:1::/48", "3fff::/20", "5f00::/16")
)
_WRAPPING: Final = tuple(ipaddress.IPv6Network(network) for network in ("::/96", "::ffff:0:0:0/96", "64:ff9b::/96"))


def _wrapped(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    if any(address in network for network in _WRAPPING):
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
