"""A hub that runs, an agent that asks it for work, and workers that do it."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest

from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, on_behalf_of
from gatehouse_client import Client, Worker
from tests.clients.proxy import Proxy, proxied
from tests.factories import make_principal, make_token
from tests.server import Server


@pytest.fixture
def token(acme: Tenant) -> str:
    return make_token(acme, "Kee", source_systems=["github"])


@pytest.fixture
def kee(acme: Tenant, token: str) -> Caller:
    """Kee, seen from inside."""
    return on_behalf_of(make_principal(acme, "Kee"))


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with proxied(server.url) as running:
        yield running


@pytest.fixture
def client(server: Server, token: str) -> Iterator[Client]:
    with Client(server.url, token) as ours:
        yield ours


@pytest.fixture
def shaky(proxy: Proxy, token: str) -> Iterator[Client]:
    """The same agent by way of the proxy."""
    with Client(proxy.url, token) as ours:
        yield ours


@contextmanager
def running(worker: Worker) -> Iterator[None]:
    """A worker at work, in a thread; at the end it is told to stop, and has stopped."""
    thread = Thread(target=worker.run)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(timeout=60)
    assert not thread.is_alive()
