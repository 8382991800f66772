"""Each suite works, on a tiny scale; its figures mean nothing there."""

import json
import os
import subprocess
import sys

import pytest
from django.conf import settings

from benchmarks import suites


def measured(*suite: str) -> list[dict[str, object]]:
    done = subprocess.run(
        [sys.executable, "manage.py", "bench", *suite, "--tiny", "--json"],
        env=os.environ,
        cwd=settings.BASE_DIR,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, object]] = json.loads(done.stdout)
    return rows


@pytest.mark.ci
def test_a_suite_measures() -> None:
    rows = measured("inbox")

    assert {row["suite"] for row in rows} == {"inbox"}
    assert all(row["ours"] is not None for row in rows)


@pytest.mark.long
def test_all_suites_measure() -> None:
    rows = measured(*suites.SUITES, "--data", "tests/memory/conversations.json")

    assert {row["suite"] for row in rows} == suites.SUITES.keys()
    assert all(row["ours"] is not None for row in rows)


def test_unknown_suite_is_refused_by_name() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "nope"], cwd=settings.BASE_DIR, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "There is no suite nope" in done.stderr
