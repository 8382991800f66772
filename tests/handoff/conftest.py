from pathlib import Path

import pytest

from tests.handoff.repositories import make_repository


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository whose path needs quoting."""
    return make_repository(tmp_path / "a räpository")
