"""Kept connections to a hub, on the standard library alone."""

import selectors
import ssl
from base64 import b64encode
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from gatehouse_client.errors import GatehouseError
from gatehouse_client.exchange import Answer, Request

NO_ANSWER: Final = (OSError, HTTPException)


class Transport:
    """Sends requests, each over a connection of its own while it lasts. Threads may share it.

    The environment names proxies: HTTPS_PROXY, HTTP_PROXY, NO_PROXY.
    """

    def __init__(self, url: str, token: str, tls: ssl.SSLContext | None = None) -> None:
        """:raises GatehouseError: if this is no address."""
        hub = urlsplit(url)
        if hub.scheme not in {"http", "https"} or not hub.hostname:
            raise GatehouseError(f"{url} is no address of a hub, such as https://hub.example.")
        self._hub = hub
        self._tls = tls or ssl.create_default_context() if hub.scheme == "https" else None
        named = "" if proxy_bypass(hub.netloc) else getproxies().get(hub.scheme, "")
        self._proxy = urlsplit(named) if named else None
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._prefix = hub.path
        if self._proxy is not None and self._tls is None:
            self._prefix = url
            self._headers |= self._for_the_proxy()
        self._idle: list[HTTPConnection] = []
        self._is_closed = False

    def send(self, request: Request, timeout: float) -> Answer:
        """Send a request once.

        :param timeout: seconds until the answer must have begun, beside what the request may wait.
        :raises OSError, HTTPException: if there is no whole answer. The request may have arrived.
        """
        connection = self._standing(timeout + request.wait) or self._connection(timeout + request.wait)
        try:
            connection.request(request.method, self._prefix + request.target, request.content, self._headers)
            response = connection.getresponse()
            answer = Answer(response.status, response.read(), response.headers.get("Retry-After", ""))
        except BaseException:
            connection.close()
            raise
        if connection.sock is not None:
            self._idle.append(connection)
        if self._is_closed:
            self.close()
        return answer

    def close(self) -> None:
        """Keep no connection. A request that is under way still gets its answer."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()

    def _standing(self, timeout: float) -> HTTPConnection | None:
        """The kept connection that was used last and that the hub has not closed."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if not _has_ended(connection):
                connection.sock.settimeout(timeout)
                return connection
            connection.close()

    def _connection(self, timeout: float) -> HTTPConnection:
        at = self._proxy or self._hub
        host = at.hostname or ""
        if self._tls is None:
            return HTTPConnection(host, at.port, timeout=timeout)
        connection = HTTPSConnection(host, at.port, timeout=timeout, context=self._tls)
        if self._proxy is not None:
            connection.set_tunnel(self._hub.hostname or "", self._hub.port, self._for_the_proxy())
        return connection

    def _for_the_proxy(self) -> dict[str, str]:
        if self._proxy is None or self._proxy.username is None:
            return {}
        user = f"{unquote(self._proxy.username)}:{unquote(self._proxy.password or '')}"
        return {"Proxy-Authorization": f"Basic {b64encode(user.encode()).decode()}"}


def _has_ended(connection: HTTPConnection) -> bool:
    """Whether something came that nobody has asked for: the end, as a rule."""
    with selectors.DefaultSelector() as selector:
        selector.register(connection.sock, selectors.EVENT_READ)
        return bool(selector.select(0))
