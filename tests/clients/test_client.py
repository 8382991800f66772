"""Every verb against a running hub, and what a lost reply does not do."""

import time
from dataclasses import replace
from threading import Thread

import pytest

import gatehouse_client as gatehouse
from apps.principals.models import Tenant
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller, acting_as
from apps.receipts.models import Receipt
from apps.tasks.models import FinishedTask
from apps.tasks.models import Task as TaskRow
from gatehouse_client import Client
from gatehouse_client.shapes import Beat
from tests import remote as remotes
from tests.clients.proxy import Proxy
from tests.factories import make_token
from tests.mcp.conftest import Server
from tests.remote import says


def _lease_one(client: Client) -> gatehouse.Lease:
    (lease,) = client.lease(task_types=["greeting"])
    return lease


def _terminal_receipts(kee: Caller, task_id: str) -> int:
    with acting_as(kee):
        return Receipt.objects.filter(dedupe_key__startswith=f"asyncgate:task_complete:{task_id}:").count()


def test_task_goes_from_requester_to_worker_and_back(client: Client) -> None:
    client.register_type("greeting", {"type": "object", "required": ["name"]}, lease_seconds=30)
    queued = client.queue("greeting", {"name": "Ada"}, priority=7)
    with pytest.raises(gatehouse.NotFinished):
        client.result(queued.task_id)

    lease = _lease_one(client)
    assert (lease.task_id, lease.run_id, lease.params) == (queued.task_id, 1, {"name": "Ada"})
    (answer,) = client.heartbeat([Beat(lease=lease, percent=50, message="half", tokens=10, cost_usd=0.01)])
    assert (answer.status, answer.order, answer.lease_ms) == ("ok", "continue", 30_000)
    assert client.status(queued.task_id).progress == {"percent": 50, "message": "half"}
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
    client.register_type("greeting", max_attempts=1)
    queued = client.queue("greeting")

    released = client.release(_lease_one(client))
    assert (released.status, released.will_retry) == ("queued", True)
    failed = client.fail(
        _lease_one(client), "no_voice", "I have lost my voice.", retryable=True, details={"cold": True}
    )

    assert (failed.status, failed.will_retry) == ("failed", False)
    assert client.result(queued.task_id).error == {
        "code": "no_voice",
        "message": "I have lost my voice.",
        "details": {"cold": True},
    }


def test_queue_many_answers_each_task(client: Client, shaky: Client, proxy: Proxy) -> None:
    client.register_type("greeting", {"type": "object", "required": ["name"]})
    proxy.drop_reply_to("/api/v1/tasks/batch")

    good, bad, other = shaky.queue_many(
        [
            {"task_type": "greeting", "params": {"name": "Ada"}, "priority": 3},
            {"task_type": "greeting", "params": {}},
            {"task_type": "greeting", "params": {"name": "Bob"}, "priority": 8},
        ]
    )

    assert isinstance(good, gatehouse.Queued)
    assert isinstance(bad, gatehouse.InvalidParams)
    assert isinstance(other, gatehouse.Queued)
    assert (proxy.dropped, good.is_duplicate) == (1, True)
    leases = client.lease(task_types=["greeting"], capacity=10)
    assert [lease.task_id for lease in leases] == [other.task_id, good.task_id]


def test_lease_waits_and_completion_leases_the_next(client: Client) -> None:
    client.register_type("greeting")
    assert client.lease(task_types=["greeting"]) == []
    given: list[gatehouse.Lease] = []
    waiting = Thread(target=lambda: given.extend(client.lease(task_types=["greeting"], wait_seconds=30)))
    waiting.start()
    queued = client.queue("greeting")
    waiting.join(timeout=60)
    (first,) = given
    assert first.task_id == queued.task_id
    second = client.queue("greeting")

    completed = client.complete(first, "Hello", lease_next=1)
    (following,) = completed.next

    assert following.task_id == second.task_id
    again = client.complete(first, "Hello", lease_next=1)
    (told,) = again.next
    assert told.lease_ms <= following.lease_ms
    assert replace(again, next=[replace(told, lease_ms=following.lease_ms)]) == completed
    assert client.complete(following, "Hello", lease_next=1).next == []


def test_inbox_is_waited_for_read_and_acked(client: Client) -> None:
    assert client.wait(0).entries == []
    heard: list[gatehouse.Inbox] = []
    waiting = Thread(target=lambda: heard.append(client.wait(60)))
    waiting.start()
    posted = client.post("Kee", source_system="github", dedupe_key="github:pr:1:v1", summary="Opened", title="PR 1")
    waiting.join(timeout=60)

    (entry,) = heard[0].entries
    assert (entry.ref, entry.receipt_ids) == (posted.entry, [posted.receipt_id])
    client.post("Kee", source_system="github", dedupe_key="github:pr:2:v1", summary="Came later")
    assert client.ack(entry.token).acked_receipts == 1
    (later,) = client.read().entries
    assert later.summary == "Came later"
    assert client.ack_entries([later.ref]).acked_entries == 1
    assert client.read().entries == []


def test_posting_a_receipt_twice_changes_nothing(client: Client) -> None:
    def post(summary: str) -> gatehouse.Posted:
        return client.post("Kee", source_system="github", dedupe_key="github:pr:1:v1", summary=summary)

    first, again = post("Opened"), post("Opened")

    assert (again.receipt_id, again.uuid) == (first.receipt_id, first.uuid)
    assert (first.is_duplicate, again.is_duplicate) == (False, True)
    with pytest.raises(gatehouse.DedupeConflict):
        post("Closed")


def test_refusals_have_names(client: Client, server: Server, acme: Tenant) -> None:
    client.register_type("greeting", {"type": "object", "required": ["name"]})

    with pytest.raises(gatehouse.InvalidParams) as invalid:
        client.queue("greeting", {})
    assert invalid.value.errors[0]["pointer"].startswith("/params")
    assert invalid.value.trace_id
    with pytest.raises(gatehouse.UnknownTaskType):
        client.queue("singing")
    with pytest.raises(gatehouse.UnknownTask):
        client.status("task_9999999")
    with pytest.raises(gatehouse.UnknownRecipient):
        client.queue("greeting", {"name": "Ada"}, recipient_ai="Nobody")
    with Client(server.url, "ght_no_such") as stranger, pytest.raises(gatehouse.Unauthorized):
        stranger.read()
    with Client(server.url, make_token(acme, "Kee", scopes=[Scope.INBOX])) as reader:
        with pytest.raises(gatehouse.MissingScope):
            reader.lease(task_types=["greeting"])
        with pytest.raises(gatehouse.Refused) as ahead:
            reader.read(after=99)
        assert (ahead.value.status, ahead.value.code) == (422, "ahead_of_inbox")


def test_completion_with_lost_reply_counts_once(client: Client, shaky: Client, proxy: Proxy, kee: Caller) -> None:
    client.register_type("greeting")
    queued = client.queue("greeting")
    lease = _lease_one(client)
    proxy.drop_reply_to(f"/{queued.task_id}/complete")

    completed = shaky.complete(lease, {"said": "Hello"}, summary="Greeted")

    assert proxy.dropped == 1
    assert client.complete(lease, {"said": "Hello"}, summary="Greeted") == completed
    assert _terminal_receipts(kee, queued.task_id) == 1
    with acting_as(kee):
        assert FinishedTask.objects.get().receipt_id == completed.receipt_id


@pytest.mark.parametrize("verb", ["fail", "release"])
def test_failure_and_release_with_lost_reply_count_once(client: Client, shaky: Client, proxy: Proxy, verb: str) -> None:
    client.register_type("greeting", max_attempts=5, backoff={"base_seconds": 0, "cap_seconds": 0})
    queued = client.queue("greeting")
    lease = _lease_one(client)
    proxy.drop_reply_to(f"/{queued.task_id}/{verb}")

    if verb == "fail":
        shaky.fail(lease, "no_voice", "I have lost my voice.", retryable=True)
    else:
        shaky.release(lease)

    assert proxy.dropped == 1
    status = client.status(queued.task_id)
    assert (status.failures, status.run_id) == (int(verb == "fail"), 1)


def test_call_with_lost_reply_happens_once(client: Client, shaky: Client, proxy: Proxy, kee: Caller) -> None:
    client.register_type("greeting")
    proxy.drop_reply_to("/api/v1/tasks")
    proxy.drop_reply_to("/api/v1/receipts")

    queued = shaky.queue("greeting")
    posted = shaky.post("Kee", source_system="github", dedupe_key="github:pr:1:v1", summary="Opened")

    assert proxy.dropped == 2
    assert queued.is_duplicate
    assert posted.is_duplicate
    with acting_as(kee):
        assert TaskRow.objects.count() == 1
        assert Receipt.objects.filter(receipt_id=posted.receipt_id).count() == 1


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
        assert client.queue("greeting").task_id == "task_1"

        assert len(hub.received) == 3
        assert len({(one.path, one.body) for one in hub.received}) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422, 500])
def test_refusal_is_not_retried(status: int) -> None:
    with remotes.serving(says(status, {"code": "no", "detail": "No."})) as hub, Client(hub.url, "ght_a") as client:
        with pytest.raises(gatehouse.Refused) as refused:
            client.queue("greeting")

        assert (refused.value.status, refused.value.code, refused.value.detail) == (status, "no", "No.")
        assert len(hub.received) == 1


def test_retry_after_is_obeyed() -> None:
    with remotes.serving(says(201, _QUEUED)) as hub, Client(hub.url, "ght_a") as client:
        hub.script = [says(429, {"code": "rate_limited"}, Retry_After="1")]
        started = time.monotonic()
        client.queue("greeting")
        assert time.monotonic() - started >= 1

        hub.script = [says(429, {"code": "rate_limited"}, Retry_After="3600")]
        with pytest.raises(gatehouse.RateLimited) as refused:
            client.queue("greeting")
        assert refused.value.retry_after == 3600


def test_patience_ends() -> None:
    with remotes.serving() as gone:
        url = gone.url
    with Client(url, "ght_a", patience=0.3) as client, pytest.raises(gatehouse.Unreachable):
        client.queue("greeting")


def test_foreign_page_is_refused() -> None:
    page = says(200, b"<h1>Log in to the hotel</h1>")
    with (
        remotes.serving(page) as hub,
        Client(hub.url, "ght_a") as client,
        pytest.raises(gatehouse.Refused, match="Log in to the hotel"),
    ):
        client.queue("greeting")


def test_unreachable_hub_is_logged_once_and_retried(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(gatehouse.Unreachable):
        Client("http://127.0.0.1:9", "token", patience=0.5).read()

    (line,) = [record.getMessage() for record in caplog.records if record.name == "gatehouse_client"]
    assert line.startswith("http://127.0.0.1:9 does not answer; trying again for 0.5 s: ")


def test_missing_configuration_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GATEHOUSE_URL", raising=False)
    monkeypatch.setenv("GATEHOUSE_TOKEN", "token")

    with pytest.raises(gatehouse.GatehouseError, match="Set GATEHOUSE_URL in the environment"):
        Client.from_environment()
