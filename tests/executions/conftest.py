"""The worker that executions call in these tests."""

from collections.abc import Iterator

import pytest

from tests.executions.workers import WorkerServer, serving


@pytest.fixture(scope="session")
def running_worker() -> Iterator[WorkerServer]:
    with serving() as server:
        yield server


@pytest.fixture
def server(running_worker: WorkerServer) -> WorkerServer:
    running_worker.reset()
    return running_worker
