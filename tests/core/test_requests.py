"""Requests as they may come over the wire."""

import base64
import os
import socket

import psycopg
import pytest
from django.db import OperationalError, connection
from django.test import Client

from apps.core.api import problems
from apps.core.pagination import BadCursor, decode_cursor
from apps.core.retries import DatabaseAway, retried
from apps.principals.models import Tenant
from apps.principals.tenancy import acting_as_system
from tests.factories import make_token


@pytest.mark.parametrize("path", ["/api/v1/whoami", "/api/v1/inbox", "/api/v1/workers"])
def test_a_head_is_answered_as_its_get(tenant: Tenant, path: str) -> None:
    headers = {"Authorization": f"Bearer {make_token(tenant)}"}
    assert Client().head(path, headers=headers).status_code == 200
    assert Client().head(path).status_code == 401


def test_a_deep_cursor_is_refused() -> None:
    with pytest.raises(BadCursor):
        decode_cursor(base64.urlsafe_b64encode(b"[" * 100_000).decode(), int)


def test_a_database_that_is_away_is_said_so_and_asked_once(transactional_db: None) -> None:
    asked = []

    def run() -> None:
        asked.append(1)
        raise OperationalError("server closed the connection unexpectedly")

    with pytest.raises(DatabaseAway):
        retried(run)
    assert asked == [1]


def test_what_is_over_a_limit_of_the_database_is_a_defect_and_not_a_database_that_is_away(
    transactional_db: None,
) -> None:
    def run() -> None:
        raise OperationalError("too long") from psycopg.errors.ProgramLimitExceeded("string is too long for tsvector")

    with pytest.raises(OperationalError) as failure:
        retried(run)
    assert problems.handle(failure.value, {}) is None


def test_a_session_that_was_lost_without_a_word_is_a_database_that_is_away(transactional_db: None) -> None:
    connection.ensure_connection()
    with socket.socket(fileno=os.dup(connection.connection.fileno())) as own:
        own.shutdown(socket.SHUT_RDWR)

    def run() -> None:
        with acting_as_system("test"):
            raise AssertionError

    with pytest.raises(DatabaseAway):
        retried(run)
    connection.close()
