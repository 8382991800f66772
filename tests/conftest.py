"""Fixtures of every test: rows are made by services, as the application's role, never as the owner."""

from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.test import Client, override_settings
from hypothesis import HealthCheck, settings

from apps.principals.models import Operator, Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as
from tests.factories import make_caller, make_tenant
from tests.interfaces.asking import ROUTED
from tests.mcp.node import packages
from tests.server import acme, server, started_server

__all__ = ["acme", "packages", "server", "started_server"]

# Timing is never asserted, so no example has a deadline; and a run says the same of the same code. To look further,
# `--hypothesis-profile anew` draws other examples each time.
settings.register_profile("alike", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("anew", settings.get_profile("alike"), derandomize=False)
settings.load_profile("alike")


_FEWEST_CASES = 3_000
# Of them are done, so that the others are not all refused for one reason.
_FEWEST_DONE = 0.15


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Say how much tests/interfaces/test_fuzz.py asked. Of all routes it must be 3,000 cases."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:  # as in a worker of pytest-xdist
        return
    found = [dict(one.user_properties) for one in reporter.getreports("passed")]
    asked = [properties["asked"] for properties in found if "asked" in properties]
    if messages := sum(properties.get("messages", 0) for properties in found):
        reporter.write_line(f"\n{messages:,} messages were sent to MCP.")
    if total := sum(sum(one.values()) for one in asked):
        done = sum(
            number for one in asked for status, number in one.items() if int(status) < HTTPStatus.MULTIPLE_CHOICES
        )
        reporter.write_line(f"\n{total:,} cases asked of {len(asked)} routes: {done:,} were done, the others refused.")
        if len(asked) >= len(ROUTED) and (total < _FEWEST_CASES or done < _FEWEST_DONE * total):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


class QuickHasher(PBKDF2PasswordHasher):
    """Django's default with one iteration; other processes of a test can read what it writes."""

    iterations = 1


@pytest.fixture(scope="session", autouse=True)
def cheap_settings() -> Iterator[None]:
    """Hash passwords once, and look for a static file when it is asked for, not whenever a test makes a client."""
    hasher = f"{QuickHasher.__module__}.{QuickHasher.__qualname__}"
    with override_settings(PASSWORD_HASHERS=[hasher], WHITENOISE_AUTOREFRESH=True):
        yield


@pytest.fixture
def tenant(db: None) -> Tenant:
    return make_tenant("acme")


@pytest.fixture
def kee(tenant: Tenant) -> Caller:
    """An agent with every scope, not yet acting."""
    return make_caller(tenant, "Kee", Kind.AI)


@pytest.fixture
def hexy(tenant: Tenant) -> Caller:
    """Another such agent."""
    return make_caller(tenant, "Hexy")


@pytest.fixture
def lee(tenant: Tenant) -> Caller:
    """A third one."""
    return make_caller(tenant, "Lee")


@pytest.fixture
def coder(tenant: Tenant) -> Caller:
    """A DeleGate below the tenant's root."""
    return make_caller(tenant, "coder", Kind.DELEGATE)


@pytest.fixture
def as_kee(kee: Caller) -> Iterator[Caller]:
    """The agent Kee, with its transaction open for the whole test."""
    with acting_as(kee):
        yield kee


@pytest.fixture
def superuser(db: None) -> Operator:
    return Operator.objects.create_superuser(username="root", password="a long enough password")


@pytest.fixture
def console(superuser: Operator) -> Client:
    """A browser in which a superuser is logged in."""
    client = Client()
    client.force_login(superuser, backend="django.contrib.auth.backends.ModelBackend")
    return client


@pytest.fixture
def own_artifacts(tmp_path: Path, settings: Any) -> None:
    """An artifact storage in which there is nothing yet."""
    place = {**settings.STORAGES["artifacts"], "OPTIONS": {"location": tmp_path / "artifacts"}}
    settings.STORAGES = {**settings.STORAGES, "artifacts": place}
