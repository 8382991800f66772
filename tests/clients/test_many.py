"""Ends of many tasks at once: each has an answer of its own, and a lost reply repeats none."""

import pytest

import gatehouse_client as gatehouse
from apps.principals.tenancy import Caller, acting_as
from apps.receipts.models import Receipt
from gatehouse_client import Client, Completion, Failure, Lease
from tests.clients.proxy import Proxy


@pytest.fixture
def held(client: Client) -> list[Lease]:
    """Four greetings, of whose first two the worker has a lease, and one that it never had."""
    client.register_type("greeting", max_attempts=5, backoff={"base_seconds": 0, "cap_seconds": 0})
    client.queue_many([{"task_type": "greeting", "params": {"name": name}} for name in ("Ada", "Bob", "Cyd", "Dan")])
    first, second = client.lease(task_types=["greeting"], capacity=2)
    forged = Lease(**{**vars(first), "task_id": second.task_id})
    return [first, second, forged]


def test_complete_many_with_lost_reply_counts_once(
    client: Client, shaky: Client, proxy: Proxy, kee: Caller, held: list[Lease]
) -> None:
    first, second, forged = held
    done = [
        Completion(lease=first, result={"said": "Hello"}, summary="Greeted"),
        Completion(lease=forged, result="Hello"),
        Completion(lease=second, result_pointer="https://greetings.example/2", result_channel="https"),
    ]
    proxy.drop_reply_to("/api/v1/tasks/complete")

    ended = shaky.complete_many(done, lease_next=5)

    assert proxy.dropped == 1
    good, bad, other = ended.results
    assert isinstance(good, gatehouse.Completed)
    assert isinstance(bad, gatehouse.BadLeaseToken)
    assert isinstance(other, gatehouse.Completed)
    assert [lease.params["name"] for lease in ended.next] == ["Cyd", "Dan"]
    assert client.result(first.task_id).content == {"said": "Hello"}
    assert client.result(second.task_id).result_pointer == "https://greetings.example/2"
    assert [lease.lease_token for lease in client.complete_many(done, lease_next=5).next] == [
        lease.lease_token for lease in ended.next
    ]
    with acting_as(kee):
        assert Receipt.objects.filter(dedupe_key__startswith="asyncgate:task_complete:").count() == 2


def test_complete_many_leases_from_another_queue(client: Client, held: list[Lease]) -> None:
    client.register_type("farewell", queue="evening")
    client.queue("farewell")

    ended = client.complete_many(
        [Completion(lease=held[0])], lease_next=2, lease_from={"task_types": ["farewell"], "lease_seconds": 7}
    )

    assert [(lease.task_type, lease.lease_ms) for lease in ended.next] == [("farewell", 7000)]


def test_fail_many_with_lost_reply_counts_once(client: Client, shaky: Client, proxy: Proxy, held: list[Lease]) -> None:
    first, second, forged = held
    proxy.drop_reply_to("/api/v1/tasks/fail")

    again, never, refused = shaky.fail_many(
        [
            Failure(lease=first, code="no_voice", message="Hoarse.", retryable=True, retry_after=60),
            Failure(lease=second, code="no_voice", message="Mute.", retryable=False, details={"cold": True}),
            Failure(lease=forged, code="no_voice", message="Hoarse.", retryable=True),
        ]
    )

    assert proxy.dropped == 1
    assert isinstance(again, gatehouse.Verdict)
    assert (again.status, again.will_retry) == ("scheduled", True)
    assert again.retry_at is not None
    assert isinstance(never, gatehouse.Verdict)
    assert (never.status, never.will_retry) == ("failed", False)
    assert isinstance(refused, gatehouse.BadLeaseToken)
    assert client.status(first.task_id).failures == 1
    assert client.result(second.task_id).error == {"code": "no_voice", "message": "Mute.", "details": {"cold": True}}


def test_release_many_with_lost_reply_counts_once(
    client: Client, shaky: Client, proxy: Proxy, held: list[Lease]
) -> None:
    first, second, _ = held
    client.complete(second, "Hello")
    proxy.drop_reply_to("/api/v1/tasks/release")

    back, late = shaky.release_many([first, second])

    assert proxy.dropped == 1
    assert isinstance(back, gatehouse.Verdict)
    assert (back.status, back.will_retry) == ("queued", True)
    assert isinstance(late, gatehouse.AlreadyDecided)
    status = client.status(first.task_id)
    assert (status.run_id, status.failures) == (1, 0)
