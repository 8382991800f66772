"""Servers, files and keys of these tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.principals.tenancy import Caller
from tests.workers.factories import enroll, make_key
from tests.workers.servers import McpServer, Registry, serving, serving_registry


@pytest.fixture
def shouter() -> Iterator[McpServer]:
    """A server with one tool that knows nothing of this product."""
    with serving() as server:
        yield server


@pytest.fixture
def remote() -> Iterator[Registry]:
    """A server that is etcd and Consul."""
    with serving_registry() as server:
        yield server


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where a source of kind `static` is."""
    return tmp_path / "workers.yaml"


@pytest.fixture
def key(as_kee: Caller) -> dict[str, str]:
    """An enrolled key that may grant `verified`."""
    made = make_key()
    enroll(as_kee, made)
    return made
