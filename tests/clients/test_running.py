"""What whoever asks for work does about it meanwhile: look, bound, order, schedule, do again."""

from itertools import pairwise
from threading import Thread

import pytest

import gatehouse_client as gatehouse
from gatehouse_client import Client, Lease
from gatehouse_client.shapes import Beat
from tests.clients.proxy import Proxy

NO_VOICE = {"code": "no_voice", "message": "Mute."}


def _lease_one(client: Client) -> Lease:
    (lease,) = client.lease(task_types=["greeting"])
    return lease


def _fail_one(client: Client) -> str:
    lease = _lease_one(client)
    client.fail(lease, "no_voice", "Mute.", retryable=False)
    return lease.task_id


def test_dead_letters_are_paged_and_replayed_once(client: Client, shaky: Client, proxy: Proxy) -> None:
    client.register_type("greeting")
    client.queue_many([{"task_type": "greeting"}] * 3)
    failed = [_fail_one(client) for _ in range(3)]

    newest = client.dead_letters(limit=2)
    rest = client.dead_letters(limit=2, cursor=newest.next)

    letters = [*newest.dead_letters, *rest.dead_letters]
    assert [letter.task_id for letter in letters] == failed[::-1]
    assert (letters[0].error, letters[0].runs, letters[0].replayed_as) == (NO_VOICE, 1, None)
    assert all(older.failed_at <= newer.failed_at for newer, older in pairwise(letters))
    assert rest.next is None

    proxy.drop_reply_to(f"/{failed[0]}/retry")
    replayed = shaky.replay(failed[0])
    assert (proxy.dropped, replayed.is_duplicate) == (1, True)
    assert _lease_one(client).task_id == replayed.task_id
    assert client.lease(task_types=["greeting"]) == []
    assert client.dead_letters().dead_letters[-1].replayed_as == replayed.task_id
    with pytest.raises(gatehouse.NotADeadLetter):
        client.replay(replayed.task_id)


def test_schedule_is_set_listed_and_removed(client: Client, shaky: Client, proxy: Proxy) -> None:
    client.register_type("greeting", {"type": "object", "required": ["name"]})
    client.schedule("hourly", "greeting", {"name": "all"}, every_seconds=3600)

    made = client.schedule("hourly", "greeting", {"name": "Ada"}, cron="0 8 * * 1-5", timezone="Europe/Vienna")

    assert (made.params, made.cron, made.every_seconds, made.timezone) == (
        {"name": "Ada"},
        "0 8 * * 1-5",
        None,
        "Europe/Vienna",
    )
    assert made.next_at is not None
    client.schedule("weekly", "greeting", {"name": "all"}, cron="0 8 * * 1", misfire="skip", enabled=False)
    first = client.schedules(limit=1)
    second = client.schedules(limit=1, cursor=first.next)
    assert [one.name for one in (*first.schedules, *second.schedules)] == ["hourly", "weekly"]
    assert (second.schedules[0].enabled, second.schedules[0].misfire, second.next) == (False, "skip", None)
    with pytest.raises(gatehouse.InvalidParams):
        client.schedule("daily", "greeting", {}, every_seconds=86_400)

    assert client.remove_schedule("weekly")
    proxy.drop_reply_to("/api/v1/schedules/hourly")
    assert not shaky.remove_schedule("hourly")
    assert proxy.dropped == 1
    assert client.schedules().schedules == []


def test_queue_limits_and_figures(client: Client, shaky: Client, proxy: Proxy) -> None:
    client.register_type("greeting", queue="early morning")
    proxy.drop_reply_to("/api/v1/queues/early%20morning")

    policy = shaky.set_queue_limits("early morning", concurrency=1, rate={"leases": 9, "per_seconds": 60.0}, fair=True)

    assert proxy.dropped == 1
    assert (policy.concurrency, policy.rate, policy.fair) == (1, {"leases": 9, "per_seconds": 60.0}, True)
    client.queue_many([{"task_type": "greeting"}] * 3)
    (lease,) = client.lease(task_types=["greeting"], capacity=3)
    (line,) = client.queues()
    assert (line.queue, line.queued, line.leased, line.paused) == ("early morning", 2, 1, False)
    assert client.set_queue_limits("early morning").concurrency is None
    assert len(client.lease(task_types=["greeting"], capacity=3)) == 2
    with pytest.raises(gatehouse.UnknownQueue):
        client.set_queue_limits("evening")
    client.release(lease)


def test_type_limits(client: Client) -> None:
    client.register_type("greeting", concurrency=2, rate={"leases": 100, "per_seconds": 1.0})
    client.queue_many([{"task_type": "greeting"}] * 3)
    assert len(client.lease(task_types=["greeting"], capacity=3)) == 2


@pytest.mark.parametrize("paused", ["queue", "type"])
def test_lease_waits_until_a_pause_ends(client: Client, paused: str) -> None:
    client.register_type("greeting")
    queued = client.queue("greeting")
    if paused == "queue":
        assert client.pause_queue("default").paused
    else:
        client.pause_type("greeting")
    assert client.lease(task_types=["greeting"]) == []
    given: list[Lease] = []
    waiting = Thread(target=lambda: given.extend(client.lease(task_types=["greeting"], wait_seconds=30)))
    waiting.start()

    if paused == "queue":
        assert not client.resume_queue("default").paused
    else:
        client.resume_type("greeting")

    waiting.join(timeout=60)
    assert [lease.task_id for lease in given] == [queued.task_id]


def test_holder_receives_orders(client: Client) -> None:
    client.register_type("greeting")
    queued = client.queue("greeting")
    with pytest.raises(gatehouse.NotLeased):
        client.order(queued.task_id, "drain")
    lease = _lease_one(client)

    client.order(queued.task_id, "checkpoint")
    assert client.heartbeat([Beat(lease=lease)])[0].order == "checkpoint"
    client.pause_queue("default", drain=True)
    assert client.heartbeat([Beat(lease=lease, checkpoint={"said": "Hel"})])[0].order == "drain"


def test_timeline_is_paged(client: Client) -> None:
    client.register_type("greeting")
    queued = client.queue("greeting")
    client.release(_lease_one(client))
    client.complete(_lease_one(client), "Hello")

    first = client.timeline(queued.task_id, limit=1)
    rest = client.timeline(queued.task_id, limit=1, cursor=first.next)

    assert first.next is not None
    assert rest.next is None
    events = [*first.events, *rest.events]
    assert {event.run_id for event in events} == {None, 1, 2}
    assert all(earlier.at <= later.at for earlier, later in pairwise(events))
    assert {event.holder for event in events if event.run_id is not None} >= {"Kee"}
    with pytest.raises(gatehouse.UnknownTask):
        client.timeline("task_9999999")
