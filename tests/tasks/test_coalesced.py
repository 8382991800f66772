"""Calls of a tenant at the same moment share a transaction; each is answered as it would be alone."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from apps.core import coalescing
from apps.core.notifications import in_thread
from apps.principals.models import Tenant, Token
from apps.principals.scopes import Kind, Scope
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.receipts.models import Receipt
from apps.tasks.models import FinishedTask, LiveTask, Task
from apps.tasks.services import running
from tests.asgi import ask as request
from tests.factories import T0, credential_of, make_tenant, make_token
from tests.tasks.making import asked, cancel, complete, lease, make_type, number, queue_many

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coalescing, "_PATIENCE", 20.0)


async def post(token: str, path: str, **body: Any) -> tuple[int, Any]:
    messages: list[Any] = []

    async def keep(message: Any) -> None:
        messages.append(message)

    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    await request(path, keep, method="POST", body=json.dumps(body).encode(), **headers)
    return messages[0]["status"], json.loads(messages[1]["body"] or "null")


async def be_seen(token: str) -> None:
    """A process must have seen a token before its calls join others."""
    await post(token, "/api/v1/tasks/lease", queues=["nothing"])


def test_completions_that_meet_are_one_group_and_refused_alone(
    tenant: Tenant, kee: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_type(kee)
    queue_many(kee, *[asked()] * 4)
    token = make_token(tenant, "W", Kind.WORKER)
    worker = credential_of(token)
    assert worker is not None
    good, lost, done, stopped = lease(worker, capacity=4)
    complete(worker, done, content="as before")
    cancel(kee, number(stopped))
    with acting_as(worker):
        LiveTask.objects.filter(task_id=number(lost)).update(fencing_token=2)
    groups: list[int] = []
    together = running.complete_many

    def counted(completions: Sequence[Any], **more: Any) -> Any:
        groups.append(len(completions))
        return together(completions, **more)

    monkeypatch.setattr(running, "complete_many", counted)

    async def requests() -> Any:
        await be_seen(token)
        ends = [(good, None), (lost, None), (done, "as before"), (done, "another"), (good, None), (stopped, None)]
        return await asyncio.gather(
            *(
                post(token, f"/api/v1/tasks/{one.task_id}/complete", lease_token=one.lease_token, result=result)
                for one, result in ends
            )
        )

    ended, refused, repeated, decided, again, raced = asyncio.run(requests())
    assert groups == [6]
    assert (ended[0], ended[1]["status"]) == (200, "succeeded")
    assert (refused[0], refused[1]["code"], refused[1]["reason"]) == (409, "lease_lost", "superseded")
    assert (decided[0], decided[1]["code"]) == (409, "already_decided")
    assert again == ended
    assert raced[1]["status"] == "succeeded"
    with acting_as(worker):
        assert repeated[1]["receipt_id"] == FinishedTask.objects.get(task_id=number(done)).receipt_id
        assert FinishedTask.objects.count() == Receipt.objects.filter(event_type="task_complete").count() == 3


def test_requests_of_several_tokens_share_a_transaction_and_are_refused_alone(tenant: Tenant, kee: Caller) -> None:
    make_type(kee)
    tokens = [make_token(tenant), make_token(tenant, "Hexy"), make_token(tenant, "Gone")]
    tokens += [make_token(tenant, "Reader", scopes=[Scope.INBOX]), make_token(make_tenant("other"), "Kee")]

    async def at_once(path: str, *calls: tuple[int, dict[str, Any]]) -> list[tuple[int, Any]]:
        return await asyncio.gather(*(post(tokens[nth], path, **body) for nth, body in calls))

    def task(**more: Any) -> dict[str, Any]:
        return {"task_type": "index", "params": {}, **more}

    async def requests() -> None:
        await asyncio.gather(*map(be_seen, tokens))
        await in_thread(revoke)
        taken, unknown, again, clash, others, gone, unscoped, foreign = await at_once(
            "/api/v1/tasks",
            (0, task(idempotency_key="a")),
            (0, task(task_type="nothing")),
            (0, task(idempotency_key="a")),
            (0, task(idempotency_key="a", priority=9)),
            (1, task(idempotency_key="a")),
            (2, task()),
            (3, task()),
            (4, task()),
        )
        assert [one[0] for one in (taken, again, others)] == [201, 200, 201]
        assert again[1]["task_id"] == taken[1]["task_id"] != others[1]["task_id"]
        refused = [(status, body["code"]) for status, body in (unknown, clash, gone, unscoped, foreign)]
        assert refused == [
            (404, "unknown_task_type"),
            (409, "idempotency_conflict"),
            (401, "authentication_failed"),
            (403, "missing_scope"),
            (404, "unknown_task_type"),
        ]
        leases = await at_once("/api/v1/tasks/lease", *((nth, {"task_types": ["index"]}) for nth in (0, 1)))
        held = [leased["tasks"][0] for _, leased in leases]
        stolen, *ended = await asyncio.gather(
            *(
                post(tokens[nth], f"/api/v1/tasks/{lease['task_id']}/complete", lease_token=lease["lease_token"])
                for nth, lease in ((1, held[0]), (0, held[0]), (1, held[1]))
            )
        )
        assert [stolen[0], *(status for status, _ in ended)] == [403, 200, 200]

    def revoke() -> None:
        with acting_as_system("test"):
            Token.objects.filter(principal__name="Gone").update(revoked_at=T0)

    asyncio.run(requests())
    with acting_as(kee):
        # The time of a row is that of its transaction.
        queued = set(Task.objects.values_list("requester__name", "created_at"))
        assert {name for name, _ in queued} == {"Kee", "Hexy"}
        assert len({at for _, at in queued}) == 1
        assert len(set(FinishedTask.objects.values_list("finished_at", flat=True))) == 1
