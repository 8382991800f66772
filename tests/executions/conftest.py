"""The worker that executions call in these tests."""

from collections.abc import Iterator

import pytest

from apps.principals.tenancy import Caller
from tests.executions.making import make_worker
from tests.executions.workers import WorkerServer, serving


@pytest.fixture(scope="session")
def running_worker() -> Iterator[WorkerServer]:
    with serving() as server:
        yield server


@pytest.fixture
def server(running_worker: WorkerServer) -> WorkerServer:
    running_worker.reset()
    return running_worker


@pytest.fixture
def texter(kee: Caller, server: WorkerServer) -> WorkerServer:
    """The test server, registered by Kee as the worker `texter`."""
    make_worker(kee, server)
    return server
