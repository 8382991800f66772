"""What becomes of cues while Redis is troubled."""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from django.conf import LazySettings, settings

from apps.core import cues


@pytest.fixture
def other_end() -> Iterator[redis.Redis]:
    cues._sender.begin_anew()
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        yield client
    cues._sender.begin_anew()


def test_a_connection_that_was_lost_costs_no_cue_after_it(other_end: redis.Redis) -> None:
    with other_end.pubsub() as heard:  # type: ignore[no-untyped-call]  # the library's
        heard.subscribe("gatehouse:cue:kee")
        heard.get_message(timeout=5)
        cues.send("kee")
        assert heard.get_message(timeout=5)["data"] == b""
        own = str(other_end.client_info()["db"])
        for one in other_end.client_list():
            if (one["cmd"], one["db"]) == ("publish", own):
                other_end.client_kill_filter(_id=one["id"])
        cues.send("kee")
        message = heard.get_message(timeout=5)
        assert message is not None
        assert message["data"] == b""


def test_a_redis_that_takes_nothing_is_asked_by_one_and_holds_up_no_others(
    other_end: redis.Redis, settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cues, "_AGAIN_AFTER", 60.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings.REDIS_URL = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        senders = [threading.Thread(target=cues.send, args=("kee",)) for _ in range(8)]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        cues.send("kee")
        silent.setblocking(False)
        asked = [silent.accept()]
        with pytest.raises(BlockingIOError):
            asked.append(silent.accept())
        for connection, _ in asked:
            connection.close()


def test_what_redis_has_against_cues_is_said(other_end: redis.Redis, settings: LazySettings, caplog: Any) -> None:
    other_end.acl_setuser("hushed", enabled=True, nopass=True, commands=["+@all", "-publish"], channels=["*"])
    try:
        kwargs = other_end.connection_pool.connection_kwargs
        place = f"unix://hushed@{kwargs['path']}" if "path" in kwargs else f"redis://hushed@127.0.0.1:{kwargs['port']}"
        settings.REDIS_URL = place
        cues.send("kee")
        assert "cue_lost" in caplog.text
    finally:
        other_end.acl_deluser("hushed")
