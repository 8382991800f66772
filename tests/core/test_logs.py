"""The logs: what is refused stands in them, what comes by the clock does not."""

import json
import logging

import pytest
from django.test import Client


@pytest.mark.parametrize(
    ("asked", "events"),
    [
        ("/livez", []),
        ("/livez?from=probe", []),
        ("/api/schema", ["request_started", "request_finished"]),
        ("/nothing/heartbeat", ["request_finished"]),
    ],
)
def test_probes_and_heartbeats_are_logged_only_when_they_are_refused(
    asked: str, events: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        Client().get(asked)
    logged = [record.msg for record in caplog.records if record.name == "django_structlog.middlewares.request"]
    assert [event["event"] for event in logged if isinstance(event, dict)] == events


@pytest.mark.parametrize("name", ["celery.beat", "celery.worker.strategy", "celery.worker.request", "celery.app.trace"])
def test_a_message_that_went_well_is_no_line_in_the_logs(name: str) -> None:
    logger = logging.getLogger(name)
    assert not logger.isEnabledFor(logging.INFO)
    assert logger.isEnabledFor(logging.WARNING)


def test_a_failure_is_logged_with_where_it_came_from() -> None:
    (handler,) = logging.getLogger().handlers[:1]
    with pytest.raises(ValueError, match="one") as failure:
        int("one")
    failed = (failure.type, failure.value, failure.tb)

    told = json.loads(handler.format(logging.LogRecord("any", logging.ERROR, __file__, 1, "it failed", (), failed)))

    assert 'int("one")' in told["exception"]
    assert "ValueError" in told["exception"]
