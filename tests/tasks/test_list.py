"""The list of tasks: what it shows to whom, its filters and pages, and what a page costs however many tasks there are."""

import json
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from apps.core.operations import call_with, find
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as
from apps.tasks import selectors, sql
from apps.tasks.models import Task
from tests.factories import make_caller
from tests.tasks import making


def listed(caller: Caller, **given: Any) -> tuple[list[str], str | None]:
    output: Any = call_with(find("list_tasks"), caller, given).output
    return [task.task_id for task in output.tasks], output.next


@pytest.fixture
def few(kee: Caller, lee: Caller, worker: Caller) -> dict[str, str]:
    """A task in each of several states, in the order in which they were queued."""
    making.make_type(kee, "index", schema={})
    making.make_type(kee, "mail", queue="post", schema={})
    done, dead, held = (making.queue(kee, "index", {"path": path}).task_id for path in ("/done", "/dead", "/held"))
    grants = {one.task_id: one for one in (making.lease_one(worker) for _ in range(3))}
    making.complete(worker, grants[done], summary="Indexed 100% of it")
    making.fail(worker, grants[dead], retryable=False)
    queued = making.queue(kee, "mail", recipient_ai="Lee").task_id
    return {"done": done, "dead": dead, "held": held, "queued": queued}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, ["queued", "held", "dead", "done"]),
        ({"status": "open"}, ["queued", "held"]),
        ({"status": "leased"}, ["held"]),
        ({"status": "queued"}, ["queued"]),
        ({"status": "failed"}, ["dead"]),
        ({"status": "succeeded"}, ["done"]),
        ({"status": "canceled"}, []),
        ({"task_type": "mail"}, ["queued"]),
        ({"queue": "default", "status": "open"}, ["held"]),
        ({"requested_by": "Lee"}, []),
        ({"requested_by": "Kee", "task_type": "mail"}, ["queued"]),
        ({"text": "100% OF"}, ["done"]),
        ({"text": "/dea"}, ["dead"]),
        ({"text": "it broke"}, ["dead"]),
        ({"text": "1000"}, []),
    ],
)
def test_tasks_that_fit_are_listed(
    kee: Caller, few: Mapping[str, str], given: dict[str, Any], found: list[str]
) -> None:
    assert listed(kee, **given) == ([few[name] for name in found], None)


def test_only_parties_see_a_task(few: Mapping[str, str], lee: Caller, tenant: Tenant) -> None:
    assert listed(lee) == ([few["queued"]], None)
    assert listed(make_caller(tenant, "Mia")) == ([], None)


def test_tasks_of_a_time_are_listed(kee: Caller, few: Mapping[str, str]) -> None:
    with acting_as(kee):
        asked_at = Task.objects.get(pk=int(few["held"].removeprefix("task_"))).created_at
    after = (asked_at + timedelta(microseconds=1)).isoformat()
    assert listed(kee, since=asked_at.isoformat())[0] == [few["queued"], few["held"]]
    assert listed(kee, until=asked_at.isoformat())[0] == [few["dead"], few["done"]]
    assert listed(kee, since=after, until=after) == ([], None)


@pytest.mark.parametrize("looked_at", [1, 2, 5_000])
@pytest.mark.parametrize("limit", [1, 3])
def test_pages_lead_to_the_end(
    kee: Caller, few: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, looked_at: int, limit: int
) -> None:
    monkeypatch.setattr(selectors, "TASKS_LOOKED_AT", looked_at)
    seen: list[str] = []
    cursor, pages = None, 0
    while pages == 0 or cursor is not None:
        page, cursor = listed(kee, limit=limit, **({"cursor": cursor} if cursor else {}))
        seen, pages = seen + page, pages + 1
        assert pages < 10
    assert seen == [few[name] for name in ("queued", "held", "dead", "done")]


@pytest.fixture
def many(kee: Caller, few: Mapping[str, str]) -> None:
    """Two hundred thousand tasks that succeeded, between others' tasks."""
    with acting_as(kee), connection.cursor() as cursor:
        cursor.execute(
            """
            insert into tasks_task (id, tenant_id, queue_id, task_type_id, requester_id, recipient_id, priority, params,
                                    receipt_id, created_at)
            select nextval('tasks_task_id_seq'), t.tenant_id, t.queue_id, t.task_type_id, t.requester_id, t.recipient_id, 5, '{}', 'r', t.created_at
            from tasks_task t, generate_series(1, 200000) where t.id = %(copied)s""",
            {"copied": int(few["done"].removeprefix("task_"))},
        )
        cursor.execute(
            """
            insert into task_history (task_id, tenant_id, status, fencing_token, summary, receipt_id, finished_at)
            select t.id, t.tenant_id, 'succeeded', 1, 'Done', 'r', t.created_at
            from tasks_task t where t.receipt_id = 'r'"""
        )


def nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from nodes(inner)


@pytest.mark.ci
@pytest.mark.parametrize("analyzed", [False, True])
@pytest.mark.parametrize(
    ("kind", "status"), [("all", None), ("all", "canceled"), ("failed", "failed"), ("open", "leased")]
)
def test_page_costs_the_same_however_many_tasks_there_are(
    kee: Caller, many: None, kind: str, status: str | None, *, analyzed: bool
) -> None:
    given = {"principal": kee.principal_id, "before": 2**63 - 1, "looked_at": 5_000, "limit": 51, "status": status}
    given |= dict.fromkeys(("task_type", "queue", "requested_by", "since", "until", "text"))
    with connection.cursor() as cursor:
        if analyzed:
            cursor.execute("analyze tasks_task, task_history, task_live")
    with acting_as(kee), connection.cursor() as cursor:
        cursor.execute(sql.IN_ORDER)
        for statement in (sql.LISTED[kind], sql.LOOKED_AT[kind]):
            cursor.execute(f"explain (analyze, format json) {statement}", given)
            ((explained,),) = cursor.fetchall()
            (plan,) = explained if isinstance(explained, list) else json.loads(explained)
            for node in nodes(plan["Plan"]):
                touched = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
                assert touched <= 10_000, json.dumps(node, indent=1)
