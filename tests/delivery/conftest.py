from collections.abc import Iterator

import pytest

from apps.delivery.models import Target
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller
from tests import remote as remotes
from tests.delivery.making import STORED, make_remote, move_away
from tests.factories import make_caller
from tests.remote import Remote, says


@pytest.fixture
def remote() -> Iterator[Remote]:
    """An inbox service elsewhere."""
    with remotes.serving(says(200, STORED)) as running:
        yield running


@pytest.fixture
def agent() -> Iterator[Remote]:
    """An address at which an agent is woken."""
    with remotes.serving() as running:
        yield running


@pytest.fixture
def lee(tenant: Tenant) -> Caller:
    """A principal that has moved to the target north, where it is called Lee."""
    return make_caller(tenant, "Lee North")


@pytest.fixture
def north(kee: Caller, lee: Caller, remote: Remote) -> Target:
    target = make_remote(kee, remote.url)
    move_away(kee, lee)
    return target
