"""One key stands for one request, in every one of its fields."""

from dataclasses import fields, replace
from datetime import timedelta
from typing import Any

import pytest

from apps.core.errors import Conflict
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as
from apps.receipts.models import Receipt
from apps.receipts.services import Group
from apps.tasks.errors import IdempotencyConflict
from apps.tasks.models import IdempotencyKey, LiveTask, Task
from apps.tasks.services import BudgetDraft, QueueRequest
from apps.tasks.states import IfDependencyFails, WhenSpent
from tests.factories import T0, make_principal
from tests.tasks.making import make_type, number, queue

GROUP = Group(resource_ref="repo:1", event_family="builds", summary_hint="Builds of 1")
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
    "recipient": "Hexy",
    "queue": "default",
    "priority": 3,
    "run_at": T0,
    "caused_by": "rcpt_before",
    "group": GROUP,
    "concurrency_key": "tree",
    "depends_on": None,
    "if_dependency_fails": None,
    "replay_of": None,
    "parent": None,
    "budget": BudgetDraft(tokens=100),
}
EARLIER = "tasks that there are"
THE_EARLIER = "a task that there is"
OTHERS: list[tuple[str, Any]] = [
    ("task_type", "other"),
    ("params", {"a": 2}),
    ("params", {"a": 1, "b": None}),
    ("params", {"a": "1"}),
    ("params", {"a": True}),
    ("params", {}),
    ("recipient", "Mallory"),
    ("recipient", None),
    ("queue", "second"),
    ("queue", None),
    ("priority", 4),
    ("priority", None),
    ("run_at", T0 + timedelta(microseconds=1)),
    ("run_at", None),
    ("caused_by", "rcpt_after"),
    ("caused_by", None),
    *(("group", replace(GROUP, **{name: value})) for name, value in OTHER_GROUPS.items()),
    ("group", None),
    ("concurrency_key", "bush"),
    ("concurrency_key", None),
    ("depends_on", EARLIER),
    ("if_dependency_fails", IfDependencyFails.FAIL),
    ("replay_of", 7),
    ("parent", THE_EARLIER),
    ("budget", BudgetDraft(tokens=101)),
    ("budget", BudgetDraft(tokens=100, cost_usd=1.0)),
    ("budget", BudgetDraft(tokens=100, when_spent=WhenSpent.CANCEL)),
    ("budget", None),
]


def everything(caller: Caller) -> list[Any]:
    with acting_as(caller):
        return [list(model.objects.order_by("pk").values()) for model in (Task, LiveTask, IdempotencyKey, Receipt)]


@pytest.fixture
def asking(tenant: Tenant, kee: Caller) -> Caller:
    """Kee, where each of these requests would be taken on its own."""
    for name in ("Hexy", "Mallory"):
        make_principal(tenant, name)
    make_type(kee)
    make_type(kee, "other")
    make_type(kee, "elsewhere", queue="second")
    return kee


def test_each_field_of_a_request_has_another_value_here() -> None:
    names = {field.name for field in fields(QueueRequest)} - {"idempotency_key"}
    assert set(FIRST) == names == {name for name, _ in OTHERS}
    assert set(OTHER_GROUPS) == {field.name for field in fields(Group)}


@pytest.mark.parametrize(("name", "value"), OTHERS)
def test_another_value_of_any_field_under_the_same_key_is_a_conflict(asking: Caller, name: str, value: Any) -> None:
    if value in (EARLIER, THE_EARLIER):
        earlier = number(queue(asking))
        value = earlier if value == THE_EARLIER else (earlier,)
    first = queue(asking, **FIRST, idempotency_key="k")
    before = everything(asking)

    with pytest.raises(IdempotencyConflict) as refused:
        queue(asking, **{**FIRST, name: value}, idempotency_key="k")

    assert isinstance(refused.value, Conflict)
    assert refused.value.extra == {"existing_task_id": first.task_id}
    assert everything(asking) == before
    again = queue(asking, **FIRST, idempotency_key="k")
    assert (again.task_id, again.is_duplicate) == (first.task_id, True)
    assert not queue(asking, **{**FIRST, name: value}, idempotency_key="another").is_duplicate
