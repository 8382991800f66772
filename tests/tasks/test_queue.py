"""Queueing: once for each key, checked against its type, noted in the ledger."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from apps.principals.models import Tenant
from apps.principals.services import disable_principal
from apps.principals.tenancy import Caller, acting_as
from apps.receipts.models import Obligation, Receipt
from apps.receipts.shapes import GroupInput
from apps.tasks import selectors
from apps.tasks.models import LiveTask, TaskType
from apps.tasks.services import queueing, running
from apps.tasks.shapes import BudgetInput, QueueTask, RegisterTaskType
from apps.tasks.states import IfDependencyFails
from tests.factories import T0, make_caller, make_principal, refused
from tests.tasks.making import SCHEMA, lease, make_type, number, queue, snapshot


def test_queued_task_is_an_obligation_in_the_ledger(tenant: Tenant, kee: Caller) -> None:
    hexy = make_principal(tenant, "Hexy")
    make_type(kee, schema=SCHEMA)

    queued = queue(kee, params={"path": "/x"}, recipient_ai="Hexy", caused_by_receipt_id="rcpt_before")

    with acting_as(kee):
        receipt = Receipt.objects.get(receipt_id=queued.receipt_id)
        obligation = Obligation.objects.get(receipt=receipt)
        assert (receipt.event_type, receipt.surface, receipt.requires_action) == ("task_queued", "ledger", True)
        assert (receipt.recipient_id, receipt.metadata["task_id"]) == (hexy.pk, queued.task_id)
        assert (obligation.debtor.name, obligation.creditor_id, obligation.closed_at) == ("asyncgate", hexy.pk, None)


@pytest.mark.parametrize(
    ("refusal", "asked"),
    [
        ("unknown_task_type", {"task_type": "nothing"}),
        ("invalid_params", {"params": {}}),
        ("invalid_params", {"params": {"path": 3}}),
        ("invalid_params", {"params": {"path": "/x", "extra": 1}}),
        ("params_too_large", {"params": {"path": "x" * 262_144}}),
        ("unknown_queue", {"params": {"path": "/x"}, "queue": "nowhere"}),
        ("unknown_recipient", {"params": {"path": "/x"}, "recipient_ai": "Nobody"}),
    ],
)
def test_refused_request_leaves_nothing(kee: Caller, refusal: str, asked: dict[str, Any]) -> None:
    make_type(kee, schema=SCHEMA)
    before = snapshot(kee)

    with refused(refusal):
        queue(kee, idempotency_key="k", **asked)

    assert snapshot(kee) == before


def test_unknown_task_type_is_refused_with_the_near_name(kee: Caller) -> None:
    make_type(kee)
    for name, hint in (("indx", "Did you mean 'index'?"), ("qqq", "Known types: ")):
        with refused("unknown_task_type") as refusal:
            queue(kee, name)
        assert refusal.value.detail.startswith(f"Unknown task type '{name}'. {hint}")


def test_invalid_params_are_named_by_their_place(kee: Caller) -> None:
    make_type(kee, schema=SCHEMA)
    with refused("invalid_params") as refusal:
        queue(kee, params={"path": "/x", "depth": -1})
    assert [error.pointer for error in refusal.value.errors] == ["/params/depth"]


def test_key_with_the_same_request_answers_the_first_task(kee: Caller) -> None:
    make_type(kee)
    first = queue(kee, params={"a": 1, "b": 2}, idempotency_key="k")
    before = snapshot(kee)

    again = queue(kee, params={"b": 2, "a": 1}, idempotency_key="k")

    assert again == first.model_copy(update={"is_duplicate": True})
    assert snapshot(kee) == before


def test_idempotency_key_belongs_to_its_principal(tenant: Tenant, kee: Caller) -> None:
    make_type(kee)
    first = queue(kee, idempotency_key="k")
    assert queue(make_caller(tenant, "Hexy"), params={"a": 1}, idempotency_key="k").task_id != first.task_id


def test_scheduled_task_is_leased_at_run_at(kee: Caller) -> None:
    make_type(kee)
    with acting_as(kee), connection.cursor() as cursor:
        cursor.execute("select set_config('gatehouse.now', %s, true)", [T0.isoformat()])
        later = queueing.queue(requester=kee, request=QueueTask(task_type="index", run_at=T0 + timedelta(seconds=10)))
        assert (later.status, selectors.status(later.task_id).next_run_at) == ("scheduled", T0 + timedelta(seconds=10))
        for seconds, given in ((9.999, 0), (10, 1)):
            cursor.execute(
                "select set_config('gatehouse.now', %s, true)", [(T0 + timedelta(seconds=seconds)).isoformat()]
            )
            assert len(running.lease(worker=kee, queues=["default"])) == given


def test_run_at_in_the_past_is_now(kee: Caller) -> None:
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
def test_invalid_or_remote_schema_is_refused(kee: Caller, schema: dict[str, Any]) -> None:
    with refused("invalid_schema"):
        make_type(kee, schema=schema)
    with acting_as(kee):
        assert not TaskType.objects.exists()


def test_type_in_code_is_made_at_first_use(kee: Caller) -> None:
    queued = queue(kee, "slow_for_tests", {"folder": "/tmp"})  # noqa: S108  # never opened
    with acting_as(kee):
        made = TaskType.objects.get(name="slow_for_tests")
        assert (made.in_code, made.lease_seconds, made.queue.name) == (True, 3, "execute")
        assert LiveTask.objects.get(task_id=number(queued)).lease_seconds == 3
        with refused("task_type_in_code"):
            queueing.register_type(tenant_id=kee.tenant_id, given=RegisterTaskType(name="slow_for_tests"), now=T0)


def test_type_registered_again_is_changed(kee: Caller) -> None:
    first, second = make_type(kee, priority=3), make_type(kee, priority=7, schema=SCHEMA)
    assert (first.pk, second.priority, second.params_schema) == (second.pk, 7, SCHEMA)


GROUP = GroupInput(resource_ref="repo:1", event_family="builds", summary_hint="Builds of 1")
OTHER_GROUPS: dict[str, Any] = {
    "resource_ref": "repo:2",
    "event_family": "tests",
    "flush_class": "immediate",
    "summary_hint": "Builds of 2",
    "break_thread": True,
    "groupable": False,
}


FIRST: dict[str, Any] = {
    "task_type": "index",
    "params": {"a": 1},
    "recipient_ai": "Hexy",
    "queue": "default",
    "priority": 3,
    "run_at": T0,
    "caused_by_receipt_id": "rcpt_before",
    "group": GROUP,
    "concurrency_key": "tree",
    "depends_on": [],
    "on_dependency_failure": IfDependencyFails.CANCEL,
    "budget": BudgetInput(tokens=100),
}


EARLIER = "tasks that there are"
OTHERS: list[tuple[str, Any]] = [
    ("task_type", "other"),
    ("params", {"a": 2}),
    ("params", {"a": 1, "b": None}),
    ("params", {"a": "1"}),
    ("recipient_ai", "Mallory"),
    ("queue", "second"),
    ("priority", 4),
    ("run_at", T0 + timedelta(microseconds=1)),
    ("caused_by_receipt_id", "rcpt_after"),
    *(("group", GROUP.model_copy(update={name: value})) for name, value in OTHER_GROUPS.items()),
    ("group", None),
    ("concurrency_key", "bush"),
    ("depends_on", EARLIER),
    ("on_dependency_failure", IfDependencyFails.FAIL),
    ("budget", BudgetInput(tokens=101)),
    ("budget", BudgetInput(tokens=100, cost_usd=1.0)),
    ("budget", None),
]


@pytest.fixture
def asking(tenant: Tenant, kee: Caller) -> Caller:
    """Kee, where each of these requests would be taken on its own."""
    for name in ("Hexy", "Mallory"):
        make_principal(tenant, name)
    make_type(kee)
    make_type(kee, "other")
    make_type(kee, "elsewhere", queue="second")
    return kee


def test_every_field_of_a_request_is_listed() -> None:
    names = set(QueueTask.model_fields) - {"idempotency_key"}
    assert set(FIRST) == names == {name for name, _ in OTHERS}
    assert set(OTHER_GROUPS) == set(GroupInput.model_fields)


@pytest.mark.parametrize(("name", "value"), OTHERS)
def test_key_with_another_value_of_any_field_conflicts(asking: Caller, name: str, value: Any) -> None:
    if value == EARLIER:
        value = [queue(asking).task_id]
    first = queue(asking, **FIRST, idempotency_key="k")
    before = snapshot(asking)

    with refused("idempotency_conflict") as refusal:
        queue(asking, **{**FIRST, name: value}, idempotency_key="k")

    assert refusal.value.extra == {"existing_task_id": first.task_id}
    assert snapshot(asking) == before
    again = queue(asking, **FIRST, idempotency_key="k")
    assert (again.task_id, again.is_duplicate) == (first.task_id, True)
    assert not queue(asking, **{**FIRST, name: value}, idempotency_key="another").is_duplicate


def test_changed_types_and_recipients_hold_at_once(tenant: Tenant, kee: Caller) -> None:
    """A process remembers both; the database says whether they are still so."""
    hexy = make_principal(tenant, "Hexy")
    make_type(kee)
    queue(kee, recipient_ai="Hexy")
    make_type(kee, queue="other", schema=SCHEMA)
    with refused("invalid_params"):
        queue(kee, params={}, recipient_ai="Hexy")
    queue(kee, params={"path": "/x"}, recipient_ai="Hexy")
    assert len(lease(kee, queues=("other",), capacity=2)) == 1
    with acting_as(kee):
        disable_principal(principal_id=hexy.pk, now=T0)
    with refused("unknown_recipient"):
        queue(kee, params={"path": "/x"}, recipient_ai="Hexy")
