"""Every verb against a running hub, and what a lost reply does not do."""

import threading
import time
from threading import Thread
from typing import Any

import pytest

import gatehouse_client as gatehouse
from apps.core import operations
from apps.principals.models import Tenant
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller, acting_as
from apps.receipts.models import Receipt
from apps.tasks.models import Task as TaskRow
from gatehouse_client import Client, Posted, Refused, Unreachable
from gatehouse_client.outputs import InboxOutput, LeasedTask, Progress
from tests import remote as remotes
from tests.clients.proxy import Proxy
from tests.factories import make_token
from tests.remote import says
from tests.server import Server


def _lease_one(client: Client) -> LeasedTask:
    (lease,) = client.lease(task_types=["greeting"])
    return lease


def _held(lease: LeasedTask, **more: Any) -> Any:
    """A lease in a batch."""
    return {"task_id": lease.task_id, "lease_token": lease.lease_token, **more}


def _terminal_receipts(kee: Caller, task_id: str) -> int:
    with acting_as(kee):
        return Receipt.objects.filter(dedupe_key__startswith=f"asyncgate:task_complete:{task_id}:").count()


def test_task_goes_from_requester_to_worker_and_back(client: Client) -> None:
    client.register_type(name="greeting", params_schema={"type": "object", "required": ["name"]}, lease_seconds=30)
    queued = client.queue(task_type="greeting", params={"name": "Ada"}, priority=7)
    with pytest.raises(gatehouse.NotFinished):
        client.result(queued.task_id)

    lease = _lease_one(client)
    assert (lease.task_id, lease.run_id, lease.params) == (queued.task_id, 1, {"name": "Ada"})
    (answer,) = client.heartbeat([_held(lease, progress={"percent": 50, "message": "half"})])
    assert (answer.status, answer.order, answer.lease_ms) == ("ok", "continue", 30_000)
    assert client.status(queued.task_id).progress == Progress(percent=50, message="half")
    completed = client.complete(lease, {"said": "Hello Ada"}, summary="Greeted Ada")

    result = client.result(queued.task_id)
    assert (result.status, result.content, result.summary) == ("succeeded", {"said": "Hello Ada"}, "Greeted Ada")
    status = client.status(queued.task_id)
    assert status.finished_at is not None
    assert status.finished_at >= status.created_at
    assert status.terminal_receipt_id == completed.receipt_id
    (entry,) = client.read().entries
    assert (entry.receipt_ids, entry.summary) == ([completed.receipt_id], "Greeted Ada")


def test_task_is_released_and_failed(client: Client) -> None:
    client.register_type(name="greeting", max_attempts=1)
    queued = client.queue(task_type="greeting")

    lease = _lease_one(client)
    released, (again,) = client.release(lease), client.release_many([lease])
    assert (released.status, released.will_retry) == (again.status, True) == ("queued", True)
    assert released.retry_at == again.retry_at is not None
    error: Any = {"code": "no_voice", "message": "I have lost my voice.", "details": {"cold": True}}
    failed = client.fail(_lease_one(client), **error, retryable=True)

    assert (failed.status, failed.will_retry) == ("failed", False)
    assert client.result(queued.task_id).error == error


def test_queue_many_answers_each_task(client: Client, shaky: Client, proxy: Proxy) -> None:
    client.register_type(name="greeting", params_schema={"type": "object", "required": ["name"]})
    proxy.drop_reply_to("/api/v1/tasks/batch")

    good, bad, other = shaky.queue_many(
        [
            {"task_type": "greeting", "params": {"name": "Ada"}, "priority": 3},
            {"task_type": "greeting", "params": {}},
            {"task_type": "greeting", "params": {"name": "Bob"}, "priority": 8},
        ]
    )

    assert [one.code for one in (good, bad, other)] == [None, "invalid_params", None]
    assert (proxy.dropped, good.is_duplicate) == (1, True)
    leases = client.lease(task_types=["greeting"], capacity=10)
    assert [lease.task_id for lease in leases] == [other.task_id, good.task_id]


def test_lease_waits_and_completion_leases_the_next(client: Client) -> None:
    client.register_type(name="greeting")
    assert client.lease(task_types=["greeting"]) == []
    given: list[LeasedTask] = []
    waiting = Thread(target=lambda: given.extend(client.lease(task_types=["greeting"], wait_seconds=30)))
    waiting.start()
    queued = client.queue(task_type="greeting")
    waiting.join(timeout=60)
    (first,) = given
    assert first.task_id == queued.task_id
    second = client.queue(task_type="greeting")

    completed = client.complete(first, "Hello", lease_next=1)
    (following,) = completed.next

    assert following.task_id == second.task_id
    assert client.complete(following, "Hello", lease_next=1).next == []


def test_inbox_is_waited_for_read_and_acked(client: Client) -> None:
    assert client.wait(0).entries == []
    heard: list[InboxOutput] = []
    waiting = Thread(target=lambda: heard.append(client.wait(60)))
    waiting.start()
    posted = client.post(recipient_ai="Kee", source_system="github", dedupe_key="github:pr:1:v1", summary="Opened")
    waiting.join(timeout=60)

    (entry,) = heard[0].entries
    assert (entry.ref, entry.receipt_ids) == (posted.entry, [posted.receipt_id])
    client.post(recipient_ai="Kee", source_system="github", dedupe_key="github:pr:2:v1", summary="Came later")
    assert entry.token is not None
    assert client.ack(entry.token).acked_receipts == 1
    (later,) = client.read().entries
    assert later.summary == "Came later"
    assert client.ack_entries([later.ref]).acked_entries == 1
    assert client.read().entries == []


def test_posting_a_receipt_twice_changes_nothing(client: Client) -> None:
    def post(summary: str) -> Posted:
        return client.post(recipient_ai="Kee", source_system="github", dedupe_key="github:pr:1:v1", summary=summary)

    first, again = post("Opened"), post("Opened")

    assert (again.receipt_id, again.uuid) == (first.receipt_id, first.uuid)
    assert (first.is_duplicate, again.is_duplicate) == (False, True)
    with pytest.raises(Refused, match="dedupe_conflict"):
        post("Closed")


def test_refusal_has_its_code_and_places(client: Client, server: Server, acme: Tenant) -> None:
    client.register_type(name="greeting", params_schema={"type": "object", "required": ["name"]})
    with pytest.raises(Refused, match="invalid_params") as invalid:
        client.queue(task_type="greeting")
    assert invalid.value.errors[0]["pointer"].startswith("/params")
    assert invalid.value.trace_id
    with pytest.raises(Refused, match="404 unknown_recipient"):
        client.queue(task_type="greeting", params={"name": "Ada"}, recipient_ai="Nobody")
    with Client(server.url, "ght_no_such") as stranger, pytest.raises(Refused, match="401 authentication_failed"):
        stranger.read()
    reader = Client(server.url, make_token(acme, "Kee", scopes=[Scope.INBOX]))
    with reader, pytest.raises(Refused, match="403 missing_scope"):
        reader.lease(task_types=["greeting"])


@pytest.mark.parametrize("verb", ["complete", "fail", "release"])
def test_end_of_a_run_with_lost_reply_counts_once(
    client: Client, shaky: Client, proxy: Proxy, kee: Caller, verb: str
) -> None:
    client.register_type(name="greeting", max_attempts=5, backoff={"base_seconds": 0, "cap_seconds": 0})
    queued = client.queue(task_type="greeting")
    lease = _lease_one(client)
    proxy.drop_reply_to(f"/{queued.task_id}/{verb}")

    if verb == "complete":
        completed = shaky.complete(lease, {"said": "Hello"}, summary="Greeted")
        assert client.complete(lease, {"said": "Hello"}, summary="Greeted") == completed
    elif verb == "fail":
        shaky.fail(lease, "no_voice", "I have lost my voice.", retryable=True)
    else:
        shaky.release(lease)

    assert proxy.dropped == 1
    status = client.status(queued.task_id)
    assert (status.failures, status.run_id) == (int(verb == "fail"), 1)
    assert _terminal_receipts(kee, queued.task_id) == int(verb == "complete")


@pytest.fixture
def held(client: Client) -> list[LeasedTask]:
    """Four greetings, of whose first two the worker has a lease, and one that it never had."""
    client.register_type(name="greeting", max_attempts=5, backoff={"base_seconds": 0, "cap_seconds": 0})
    client.queue_many([{"task_type": "greeting", "params": {"name": name}} for name in ("Ada", "Bob", "Cyd", "Dan")])
    first, second = client.lease(task_types=["greeting"], capacity=2)
    return [first, second, LeasedTask(**{**vars(first), "task_id": second.task_id})]


def test_complete_many_with_lost_reply_counts_once(
    client: Client, shaky: Client, proxy: Proxy, kee: Caller, held: list[LeasedTask]
) -> None:
    first, second, forged = held
    proxy.drop_reply_to("/api/v1/tasks/complete")
    ended = shaky.complete_many(
        [
            _held(first, result={"said": "Hello"}, summary="Greeted"),
            _held(forged, result="Hello"),
            _held(second, result_pointer="https://greetings.example/2", result_channel="https"),
        ],
        lease_next=5,
    )

    assert proxy.dropped == 1
    assert [one.code for one in ended.results] == [None, "bad_lease_token", None]
    assert [lease.params["name"] for lease in ended.next] == ["Cyd", "Dan"]
    assert client.result(first.task_id).content == {"said": "Hello"}
    assert client.result(second.task_id).result_pointer == "https://greetings.example/2"
    assert [_terminal_receipts(kee, lease.task_id) for lease in (first, second)] == [1, 1]


def test_release_many_answers_each_run(client: Client, held: list[LeasedTask]) -> None:
    first, second, forged = held
    again = client.fail(first, "no_voice", "Hoarse.", retryable=True, retry_after=60)
    back, refused, late = client.release_many([second, forged, first])

    assert (again.status, again.will_retry, again.retry_at is not None) == ("scheduled", True, True)
    assert (back.status, back.code) == ("queued", None)
    assert (refused.code, late.code) == ("bad_lease_token", "already_decided")


def test_call_with_lost_reply_happens_once(client: Client, shaky: Client, proxy: Proxy, kee: Caller) -> None:
    client.register_type(name="greeting")
    proxy.drop_reply_to("/api/v1/tasks")
    proxy.drop_reply_to("/api/v1/receipts")

    queued = shaky.queue(task_type="greeting")
    posted = shaky.post(recipient_ai="Kee", source_system="github", dedupe_key="github:pr:1:v1", summary="Opened")

    assert proxy.dropped == 2
    assert queued.is_duplicate
    assert posted.is_duplicate
    with acting_as(kee):
        assert TaskRow.objects.count() == 1
        assert Receipt.objects.filter(receipt_id=posted.receipt_id).count() == 1


def _fail_one(client: Client) -> str:
    lease = _lease_one(client)
    client.fail(lease, "no_voice", "Mute.", retryable=False)
    return lease.task_id


def test_dead_letters_are_paged_and_retried_once(client: Client, shaky: Client, proxy: Proxy) -> None:
    client.register_type(name="greeting")
    client.queue_many([{"task_type": "greeting"}] * 2)
    failed = [_fail_one(client) for _ in range(2)]

    newest = client.tasks(status="failed", limit=1)
    rest = client.tasks(status="failed", limit=1, cursor=newest.next)
    assert [one.task_id for one in [*newest.tasks, *rest.tasks]] == failed[::-1]
    assert client.status(failed[0]).error == {"code": "no_voice", "message": "Mute."}

    first = client.timeline(failed[0], limit=1)
    assert ([event.event for event in first.events][:2], first.next) == (["queued", "leased"], None)

    proxy.drop_reply_to(f"/{failed[0]}/retry")
    retried = shaky.retry(failed[0])
    assert (proxy.dropped, retried.is_duplicate) == (1, True)
    assert client.tasks().tasks[0].task_id == retried.task_id
    with pytest.raises(Refused, match="not_a_dead_letter"):
        client.retry(retried.task_id)


def test_schedule_is_set_listed_and_removed(client: Client, shaky: Client, proxy: Proxy) -> None:
    client.register_type(name="greeting")
    client.schedule(name="hourly", task_type="greeting", params={"name": "all"}, every_seconds=3600)
    made = client.schedule(
        name="hourly", task_type="greeting", params={"name": "Ada"}, cron="0 8 * * 1-5", timezone="Europe/Vienna"
    )
    assert (made.params, made.cron, made.every_seconds) == ({"name": "Ada"}, "0 8 * * 1-5", None)
    assert made.next_at is not None
    client.schedule(name="weekly", task_type="greeting", cron="0 8 * * 1", enabled=False)
    first = client.schedules(limit=1)
    second = client.schedules(limit=1, cursor=first.next)
    assert [one.name for one in (*first.schedules, *second.schedules)] == ["hourly", "weekly"]

    assert client.remove_schedule("weekly")
    proxy.drop_reply_to("/api/v1/schedules/hourly")
    assert not shaky.remove_schedule("hourly")
    assert client.schedules().schedules == []


def test_queue_has_limits_pauses_and_figures(client: Client, shaky: Client, proxy: Proxy) -> None:
    client.register_type(name="greeting", queue="early morning")
    proxy.drop_reply_to("/api/v1/queues/early%20morning")
    policy = shaky.set_queue_limits("early morning", concurrency=1, rate={"leases": 9, "per_seconds": 60.0}, fair=True)
    assert (policy.concurrency, policy.rate, policy.fair) == (1, {"leases": 9, "per_seconds": 60.0}, True)
    client.queue_many([{"task_type": "greeting"}] * 3)
    (lease,) = client.lease(task_types=["greeting"], capacity=3)
    (line,) = client.queues()
    assert (line.queue, line.queued, line.leased, line.paused) == ("early morning", 2, 1, False)
    client.release(lease)

    assert client.pause_queue("early morning").paused
    assert not client.resume_queue("early morning").paused
    client.pause_type("greeting")
    assert client.lease(task_types=["greeting"]) == []
    client.resume_type("greeting")
    assert len(client.lease(task_types=["greeting"])) == 1


def test_holder_receives_orders(client: Client) -> None:
    client.register_type(name="greeting")
    queued = client.queue(task_type="greeting")
    with pytest.raises(Refused, match="not_leased"):
        client.control(queued.task_id, "drain")
    lease = _lease_one(client)
    client.control(queued.task_id, "checkpoint")
    assert client.heartbeat([_held(lease)])[0].order == "checkpoint"
    client.pause_queue("default", drain=True)
    assert client.heartbeat([_held(lease, checkpoint={"said": "Hel"})])[0].order == "drain"


_QUEUED = {
    "task_id": "task_1",
    "status": "queued",
    "is_duplicate": False,
    "receipt_id": "rcpt_1",
    "poll_suggestion_seconds": 5,
    "of_a_later_release": True,
}


@pytest.mark.parametrize(
    "first",
    [
        says(502, b"<h1>Bad gateway</h1>"),
        says(503, {"code": "busy"}),
        says(504, b""),
        says(429, {"code": "rate_limited"}, Retry_After="0"),
        remotes.hangs_up,
    ],
)
def test_repeated_request_is_identical(first: remotes.Behaviour) -> None:
    with remotes.serving(says(201, _QUEUED)) as hub, Client(hub.url, "ght_a") as client:
        hub.script = [first, first]
        assert client.queue(task_type="greeting").task_id == "task_1"

        assert len(hub.received) == 3
        assert len({(one.path, one.body) for one in hub.received}) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422, 500])
def test_refusal_is_not_retried(status: int) -> None:
    with remotes.serving(says(status, {"code": "no", "detail": "No."})) as hub, Client(hub.url, "ght_a") as client:
        with pytest.raises(gatehouse.Refused) as refused:
            client.queue(task_type="greeting")

        assert (refused.value.status, refused.value.code, refused.value.detail) == (status, "no", "No.")
        assert len(hub.received) == 1


def test_retry_after_is_obeyed() -> None:
    with remotes.serving(says(201, _QUEUED)) as hub, Client(hub.url, "ght_a") as client:
        hub.script = [says(429, {"code": "rate_limited"}, Retry_After="1")]
        started = time.monotonic()
        client.queue(task_type="greeting")
        assert time.monotonic() - started >= 1

        hub.script = [says(429, {"code": "rate_limited"}, Retry_After="3600")]
        with pytest.raises(gatehouse.RateLimited) as refused:
            client.queue(task_type="greeting")
        assert refused.value.retry_after == 3600


def test_foreign_page_is_refused() -> None:
    page = says(200, b"<h1>Log in to the hotel</h1>")
    with (
        remotes.serving(page) as hub,
        Client(hub.url, "ght_a") as client,
        pytest.raises(gatehouse.Refused, match="Log in to the hotel"),
    ):
        client.queue(task_type="greeting")


def test_unreachable_hub_is_logged_once_and_retried_with_patience(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(gatehouse.Unreachable):
        Client("http://127.0.0.1:9", "token", patience=0.5).read()

    (line,) = [record.getMessage() for record in caplog.records if record.name == "gatehouse_client"]
    assert line.startswith("http://127.0.0.1:9 does not answer; trying again for 0.5 s: ")

    caplog.clear()
    worker = gatehouse.Worker(Client("http://127.0.0.1:9", "token"))
    worker.task(lambda: None)
    threading.Timer(0.4, worker.stop).start()
    worker.run()
    assert len([one for one in caplog.records if "is not registered yet" in one.getMessage()]) == 1


def test_missing_configuration_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GATEHOUSE_URL", raising=False)
    monkeypatch.setenv("GATEHOUSE_TOKEN", "token")

    with pytest.raises(gatehouse.GatehouseError, match="Set GATEHOUSE_URL in the environment"):
        Client.from_environment()


def test_memory_is_stored_recalled_and_packed(client: Client, shaky: Client, proxy: Proxy, kee: Caller) -> None:
    stored = client.remember(observation="Ada drinks green tea.", domain="people")
    proxy.drop_reply_to("/api/v1/memory/observations")
    with pytest.raises(Unreachable):
        shaky.remember(observation="Bob drinks coffee.")

    assert [hit.ref for hit in client.recall(query="What does Ada drink?", limit=1).hits] == [stored.ref]
    assert len(client.recall(query="coffee").hits) == 1
    for name, given in (("add_subject", {}), ("remember_fact", {"fact": "Prefers short answers."})):
        operations.call_with(operations.find(name), kee, {"subject_id": "USER:ada", **given})
    assert "Prefers short answers." in client.envelope("USER:ada")
