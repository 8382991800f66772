"""The servers of a test run."""

import os

import psycopg
import redis


def test_the_products_role_is_a_plain_one() -> None:
    with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
        assert connection.execute("SELECT rolsuper FROM pg_roles WHERE rolname = session_user").fetchone() == (False,)


def test_the_broker_never_forgets_to_make_room() -> None:
    with redis.Redis.from_url(os.environ["REDIS_URL"]) as client:
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
