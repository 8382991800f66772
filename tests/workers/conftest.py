"""Servers that workers are found at in these tests."""

from collections.abc import Iterator

import pytest

from tests.workers.servers import McpServer, serving


@pytest.fixture
def shouter() -> Iterator[McpServer]:
    """A server with one tool that knows nothing of this product."""
    with serving() as server:
        yield server
