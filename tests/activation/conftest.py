from collections.abc import Iterator

import pytest

from tests import remote as remotes
from tests.remote import Remote


@pytest.fixture
def agent() -> Iterator[Remote]:
    """Where an agent listens for wakes."""
    with remotes.serving() as running:
        yield running
