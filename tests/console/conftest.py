import pytest
from django.test import Client

from apps.principals.models import Operator


@pytest.fixture
def superuser(db: None) -> Operator:
    return Operator.objects.create_superuser(username="root", password="a long enough password")


@pytest.fixture
def console(superuser: Operator) -> Client:
    """A browser in which a superuser is logged in."""
    client = Client()
    client.force_login(superuser, backend="django.contrib.auth.backends.ModelBackend")
    return client
