"""That each suite works, on tiny numbers; its figures mean nothing."""

import json
import os
import subprocess
import sys

import psycopg
import pytest
import redis
from django.conf import settings

from apps.bench import suites


@pytest.mark.ci
@pytest.mark.parametrize("suite", suites.names())
def test_a_suite_measures_on_the_given_servers_and_leaves_nothing(suite: str) -> None:
    data = ["--data", "tests/memory/conversations.json"] if suites.needs_data(suite) else []
    done = subprocess.run(
        [sys.executable, "manage.py", "bench", suite, "--tiny", "--json", *data],
        env=os.environ | {"GATEHOUSE_LOG_LEVEL": "WARNING"},
        cwd=settings.BASE_DIR,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert {row["suite"] for row in rows} == {suite}
    assert all(row["ours"] > 0 for row in rows)
    with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
        left = connection.execute("select datname from pg_database where datname like 'gatehouse_bench_%'").fetchall()
    assert left == []
    with redis.Redis.from_url(os.environ["REDIS_URL"]) as client:
        assert "db15" not in client.info("keyspace")
