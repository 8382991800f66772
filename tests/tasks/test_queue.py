"""Taking work in: once per key, checked against its type, announced in the ledger."""

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from apps.core.errors import DomainError, Invalid
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as
from apps.receipts.models import Obligation, Receipt
from apps.tasks import selectors, services
from apps.tasks.errors import (
    IdempotencyConflict,
    InvalidParams,
    InvalidSchema,
    ParamsTooLarge,
    TaskTypeDisabled,
    TaskTypeInCode,
    UnknownQueue,
    UnknownRecipient,
    UnknownTaskType,
)
from apps.tasks.models import IdempotencyKey, LiveTask, Task, TaskType
from apps.tasks.services.types import TypeDraft
from tests.factories import T0, make_caller, make_principal, make_tenant
from tests.tasks import slow_handler  # noqa: F401  # registers a type in code
from tests.tasks.making import SCHEMA, lease, make_type, number, queue


def _counts(caller: Caller) -> tuple[int, ...]:
    with acting_as(caller):
        return tuple(model.objects.count() for model in (Task, LiveTask, IdempotencyKey, Receipt, Obligation))


def test_a_queued_task_is_owed_to_its_recipient_in_the_ledger(tenant: Tenant, kee: Caller) -> None:
    hexy = make_principal(tenant, "Hexy")
    make_type(kee, schema=SCHEMA)

    queued = queue(kee, params={"path": "/x"}, recipient="Hexy", caused_by="rcpt_before")

    with acting_as(kee):
        receipt = Receipt.objects.get(receipt_id=queued.receipt_id)
        obligation = Obligation.objects.get(receipt=receipt)
        assert (receipt.event_type, receipt.surface, receipt.requires_action) == ("task_queued", "ledger", True)
        assert (receipt.recipient_id, receipt.metadata["task_id"]) == (hexy.pk, queued.task_id)
        assert (obligation.debtor.name, obligation.creditor_id, obligation.closed_at) == ("asyncgate", hexy.pk, None)


@pytest.mark.parametrize(
    ("refusal", "asked"),
    [
        (UnknownTaskType, {"task_type": "nothing"}),
        (InvalidParams, {"params": {}}),
        (InvalidParams, {"params": {"path": 3}}),
        (InvalidParams, {"params": {"path": "/x", "extra": 1}}),
        (ParamsTooLarge, {"params": {"path": "x" * 262_144}}),
        (UnknownQueue, {"params": {"path": "/x"}, "queue": "nowhere"}),
        (UnknownRecipient, {"params": {"path": "/x"}, "recipient": "Nobody"}),
        (Invalid, {"params": {"path": "/x"}, "priority": 11}),
        (Invalid, {"params": {"path": "/x"}, "priority": 0}),
    ],
)
def test_a_refused_request_leaves_nothing(kee: Caller, refusal: type[DomainError], asked: dict[str, Any]) -> None:
    make_type(kee, schema=SCHEMA)
    before = _counts(kee)

    with pytest.raises(refusal):
        queue(kee, idempotency_key="k", **asked)

    assert _counts(kee) == before


def test_a_disabled_type_takes_no_tasks(kee: Caller) -> None:
    make_type(kee, enabled=False)
    with pytest.raises(TaskTypeDisabled):
        queue(kee)
    assert _counts(kee) == (0, 0, 0, 0, 0)


def test_a_fault_of_the_params_is_named_by_its_place(kee: Caller) -> None:
    make_type(kee, schema=SCHEMA)
    with pytest.raises(InvalidParams) as refused:
        queue(kee, params={"path": "/x", "depth": -1})
    assert [error.pointer for error in refused.value.errors] == ["/params/depth"]


def test_the_same_key_with_the_same_request_answers_the_first_task(kee: Caller) -> None:
    make_type(kee)
    first = queue(kee, params={"a": 1, "b": 2}, idempotency_key="k")
    before = _counts(kee)

    again = queue(kee, params={"b": 2, "a": 1}, idempotency_key="k")

    assert (again.task_id, again.receipt_id, again.status) == (first.task_id, first.receipt_id, first.status)
    assert (first.is_duplicate, again.is_duplicate) == (False, True)
    assert _counts(kee) == before


@pytest.mark.parametrize(
    "other", [{"params": {"a": 2}}, {"priority": 9}, {"recipient": "Kee"}, {"run_at": T0}, {"task_type": "other"}]
)
def test_the_same_key_with_another_request_is_refused(kee: Caller, other: dict[str, Any]) -> None:
    make_type(kee)
    make_type(kee, "other")
    first = queue(kee, params={"a": 1}, idempotency_key="k")
    before = _counts(kee)

    with pytest.raises(IdempotencyConflict) as refused:
        queue(kee, **{"params": {"a": 1}, **other}, idempotency_key="k")

    assert refused.value.extra == {"existing_task_id": first.task_id}
    assert _counts(kee) == before


def test_a_key_is_its_principals_own(tenant: Tenant, kee: Caller) -> None:
    make_type(kee)
    first = queue(kee, idempotency_key="k")
    assert queue(make_caller(tenant, "Hexy"), params={"a": 1}, idempotency_key="k").task_id != first.task_id


@pytest.mark.django_db(transaction=True)
def test_rivals_with_one_key_make_one_task() -> None:
    kee = make_caller(make_tenant("acme"))
    make_type(kee)
    barrier = threading.Barrier(6)
    answers = []

    def ask() -> None:
        try:
            barrier.wait(10)
            answers.append(queue(kee, idempotency_key="k"))
        finally:
            connection.close()

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert len({answer.task_id for answer in answers}) == 1
    assert sorted(answer.is_duplicate for answer in answers) == [False] + [True] * 5
    assert _counts(kee) == (1, 1, 1, 1, 1)


def test_a_task_for_later_is_given_out_when_its_moment_has_come(kee: Caller) -> None:
    make_type(kee)
    with acting_as(kee), connection.cursor() as cursor:
        cursor.execute("select set_config('gatehouse.now', %s, true)", [T0.isoformat()])
        later = services.queue(
            requester=kee,
            request=services.QueueRequest(task_type="index", params={}, run_at=T0 + timedelta(seconds=10)),
        )
        assert (later.status, selectors.status(later.task_id).next_run_at) == (
            "scheduled",
            T0 + timedelta(seconds=10),
        )
        for seconds, given in ((9.999, 0), (10, 1)):
            cursor.execute(
                "select set_config('gatehouse.now', %s, true)", [(T0 + timedelta(seconds=seconds)).isoformat()]
            )
            assert len(services.lease(worker=kee, queues=["default"])) == given


def test_a_moment_in_the_past_is_now(kee: Caller) -> None:
    make_type(kee)
    assert queue(kee, run_at=T0 - timedelta(days=3650)).status == "queued"
    assert len(lease(kee)) == 1


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"$ref": "http://127.0.0.1:1/schema.json"},
        {"$ref": "file:///etc/passwd"},
        {"minimum": "x"},
    ],
)
def test_a_schema_that_is_none_or_lies_elsewhere_is_refused(kee: Caller, schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidSchema):
        make_type(kee, schema=schema)
    with acting_as(kee):
        assert not TaskType.objects.exists()


def test_a_type_in_code_is_made_at_its_first_use_and_belongs_to_the_code(kee: Caller) -> None:
    queued = queue(kee, "slow_for_tests", {"folder": "/tmp"})  # noqa: S108  # never opened
    with acting_as(kee):
        made = TaskType.objects.get(name="slow_for_tests")
        assert (made.in_code, made.lease_seconds, made.queue.name) == (True, 3, "execute")
        assert LiveTask.objects.get(task_id=number(queued)).lease_seconds == 3
        with pytest.raises(TaskTypeInCode):
            services.register_type(caller=kee, draft=TypeDraft(name="slow_for_tests", queue="default"), now=T0)


def test_a_type_registered_again_is_changed(kee: Caller) -> None:
    first, second = make_type(kee, priority=3), make_type(kee, priority=7, schema=SCHEMA)
    assert (first.pk, second.priority, second.params_schema) == (second.pk, 7, SCHEMA)
