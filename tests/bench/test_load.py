"""The ground and the clients of measurements."""

import subprocess
import sys
import time
from functools import partial

import pytest
from django.conf import settings

from apps.bench import ground, load
from apps.bench.world import SOURCE


def test_a_reader_that_asks_the_writers_waits_for_the_slowest() -> None:
    writing = load.Countdown(2)

    def write(seconds: float) -> float:
        with writing.one():
            time.sleep(seconds)
            return time.monotonic()

    def read() -> float:
        while not writing.over:
            time.sleep(0.001)
        return time.monotonic()

    ended, *written = load.side_by_side([read, partial(write, 0), partial(write, 0.2)])

    assert ended >= max(written)


def test_a_writer_that_fails_keeps_no_reader_waiting() -> None:
    writing = load.Countdown(1)

    with pytest.raises(load.ClientFailed), writing.one():
        raise load.ClientFailed

    assert writing.over


@pytest.mark.ci
def test_no_limit_of_sources_holds_a_measurement_back() -> None:
    asked = f"from apps.principals.limits import per_hour; print(per_hour('{SOURCE}'))"

    with ground.prepared() as environment:
        done = subprocess.run(
            [sys.executable, "-c", f"import django; django.setup(); {asked}"],
            env=environment,
            cwd=settings.BASE_DIR,
            capture_output=True,
            text=True,
            check=True,
        )

    assert int(done.stdout) >= 1_000_000


def test_a_moment_is_that_of_the_first() -> None:
    moment = load.Moment()

    def begin(seconds: float) -> float:
        time.sleep(seconds)
        moment.note()
        return time.monotonic()

    began = load.side_by_side([partial(begin, 0.2), partial(begin, 0)])

    assert moment.at <= min(began)
