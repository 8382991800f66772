"""Calls of one caller at the same moment share a transaction; each is answered as it would be alone."""

import asyncio
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
from django.db import transaction

from apps.core import coalescing, operations
from apps.core.errors import Conflict
from apps.core.notifications import in_thread
from apps.core.schemas import parse
from apps.digests import services as digests
from apps.principals.models import Tenant, Token
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.receipts.models import Receipt
from apps.tasks.models import FinishedTask, LiveTask, Task
from apps.tasks.services import ending
from tests.asgi import ask as request
from tests.digests.test_coalesced_posts import is_held_up
from tests.factories import T0, make_tenant, make_token
from tests.tasks.making import asked, cancel, complete, lease, make_type, queue_many
from tests.waiters import at_once, until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coalescing, "_PATIENCE", 20.0)


def ask(caller: Caller, name: str, given: Mapping[str, Any]) -> Any:
    declared = operations.find(name)
    return operations.call(declared, caller, parse(declared.input, given)).output


def meeting(
    line: Mapping[Any, Sequence[Any]],
    hold: Callable[[], Any],
    first: Callable[[], Any],
    others: Sequence[Callable[[], Any]],
    meanwhile: Callable[[], Any] = lambda: None,
) -> list[Any]:
    """What becomes of the others, which come one by one while the first is at work.

    :param hold: takes in a transaction what the first waits for.
    """
    holds, release = threading.Event(), threading.Event()

    def holder() -> None:
        with transaction.atomic():
            hold()
            holds.set()
            assert release.wait(20)

    def leader() -> Any:
        assert holds.wait(20)
        return first()

    def in_turn(place: int, other: Callable[[], Any]) -> Any:
        until(lambda: bool(line) and sum(map(len, line.values())) == place)
        return other()

    def let_go() -> None:
        until(lambda: sum(map(len, line.values())) == len(others) and is_held_up())
        meanwhile()
        release.set()

    outcomes = at_once(holder, leader, let_go, *(partial(in_turn, *pair) for pair in enumerate(others)))
    assert not line
    assert not any(isinstance(one, Exception) for one in outcomes[:3]), outcomes[:3]
    return outcomes[3:]


def test_completions_that_meet_are_one_group_and_refused_alone(
    kee: Caller, worker: Caller, rival: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_type(kee)
    queue_many(kee, *[asked()] * 5)
    first, good, lost, done, stopped = lease(worker, capacity=5)
    complete(worker, done, content="as before")
    with acting_as(worker):
        LiveTask.objects.filter(task_id=lost.task_id).update(fencing_token=2)
    groups: list[int] = []
    together = ending.complete_for

    def counted(completions: Sequence[Any], **more: Any) -> Any:
        groups.append(len(completions))
        return together(completions, **more)

    monkeypatch.setattr(ending, "complete_for", counted)

    def end(grant: Any, result: Any = None) -> Callable[[], Any]:
        given = {"task_id": f"task_{grant.task_id}", "lease_token": grant.lease_token, "result": result}
        return partial(ask, worker, "complete_task", given)

    def hold() -> None:
        with acting_as(kee):
            digests.lock(principal_id=kee.principal_id)

    answers = meeting(
        operations._coalescer._waiting,
        hold,
        end(first),
        [end(good), end(lost), end(done, "as before"), end(done, "another"), end(good), end(stopped)],
        meanwhile=lambda: cancel(kee, stopped.task_id),
    )

    assert groups == [1, 6]
    ended, refused, repeated, decided, again, raced = answers
    assert ended.status == "succeeded"
    assert isinstance(refused, Conflict)
    assert (refused.code, refused.extra["reason"]) == ("lease_lost", "superseded")
    with acting_as(worker):
        assert repeated.receipt_id == FinishedTask.objects.get(task_id=done.task_id).receipt_id
        assert FinishedTask.objects.count() == 4
    assert isinstance(decided, Conflict)
    assert decided.code == "already_decided"
    assert again == ended
    assert raced.status == "succeeded"
    with acting_as(kee):
        assert Receipt.objects.filter(event_type="task_complete").count() == 4


async def _post(token: str, path: str, **body: Any) -> tuple[int, Any]:
    messages: list[Any] = []

    async def keep(message: Any) -> None:
        messages.append(message)

    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    await request(path, keep, method="POST", body=json.dumps(body).encode(), **headers)
    return messages[0]["status"], json.loads(messages[1]["body"] or "null")


def test_requests_of_several_tokens_share_a_transaction_and_are_refused_alone(tenant: Tenant, kee: Caller) -> None:
    make_type(kee)
    tokens = [make_token(tenant), make_token(tenant, "Hexy"), make_token(tenant, "Gone")]
    tokens += [make_token(tenant, "Reader", scopes=[Scope.INBOX]), make_token(make_tenant("other"), "Kee")]

    async def at_once(path: str, *calls: tuple[int, dict[str, Any]]) -> list[tuple[int, Any]]:
        return await asyncio.gather(*(_post(tokens[nth], path, **body) for nth, body in calls))

    def task(**more: Any) -> dict[str, Any]:
        return {"task_type": "index", "params": {}, **more}

    async def requests() -> None:
        # A process must have seen a token before its calls join others.
        await asyncio.gather(*(_post(token, "/api/v1/tasks/lease", task_types=["index"]) for token in tokens))
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
                _post(tokens[nth], f"/api/v1/tasks/{lease['task_id']}/complete", lease_token=lease["lease_token"])
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
