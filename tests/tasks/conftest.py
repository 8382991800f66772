import pytest

from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller
from tests.factories import make_caller
from tests.tasks import slow_handler  # noqa: F401  # registers a type in code


@pytest.fixture
def worker(tenant: Tenant) -> Caller:
    """A task worker, not yet acting."""
    return make_caller(tenant, "W", Kind.WORKER)


@pytest.fixture
def rival(tenant: Tenant) -> Caller:
    """Another task worker."""
    return make_caller(tenant, "V", Kind.WORKER)
