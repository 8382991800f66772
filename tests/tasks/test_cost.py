"""What the verbs cost: statements, plans, kinds of updates. No times are asserted."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.core.sql import hot_cursor
from apps.principals.tenancy import Caller, acting_as
from apps.tasks import services, sql
from apps.tasks.services import Beat, Failure, QueueRequest
from tests.tasks.making import NO_RESULT, lease, make_type, queue

_UPDATES = """
select pg_stat_get_tuples_updated('tasks_hottask'::regclass), pg_stat_get_tuples_hot_updated('tasks_hottask'::regclass)
"""


def _statements(act: Callable[[], Any]) -> int:
    """How many statements of AsyncGate's own a verb makes: receipts and transactions are others' business."""
    with CaptureQueriesContext(connection) as captured:
        act()
    own = [query["sql"] for query in captured if "tasks_" in query["sql"]]
    return len(own)


def _plan(statement: str, given: dict[str, Any]) -> list[str]:
    with hot_cursor() as cursor:
        cursor.execute(f"explain {statement}", given)
        return [line for (line,) in cursor.fetchall()]


def test_the_verbs_make_few_statements(kee: Caller) -> None:
    make_type(kee)
    for _ in range(8):
        queue(kee)
    with acting_as(kee):
        request = QueueRequest(task_type="index", params={})
        keyed = QueueRequest(task_type="index", params={}, idempotency_key="k")
        counts = {
            "queue": _statements(lambda: services.queue(requester=kee, request=request)),
            "queue with key": _statements(lambda: services.queue(requester=kee, request=keyed)),
            "lease": _statements(lambda: services.lease(worker=kee, queues=["default"], capacity=4)),
        }
        one, other, third, fourth = services.lease(worker=kee, queues=["default"], capacity=4)
        beats = [Beat(task_id=grant.task_id, lease_token=grant.lease_token) for grant in (one, other, third)]
        counts["heartbeat of three"] = _statements(lambda: services.heartbeat(worker=kee, beats=beats))
        for verb, act in {
            "complete": lambda: services.complete(
                worker=kee, task_id=one.task_id, lease_token=one.lease_token, delivery=NO_RESULT
            ),
            "release": lambda: services.release(worker=kee, task_id=other.task_id, lease_token=other.lease_token),
            "fail": lambda: services.fail(
                worker=kee,
                task_id=third.task_id,
                lease_token=third.lease_token,
                failure=Failure(code="x", message="x", retryable=True),
            ),
            "cancel": lambda: services.cancel(caller=kee, task_id=fourth.task_id),
        }.items():
            counts[verb] = _statements(act)

    assert counts == {
        "queue": 2,
        "queue with key": 3,
        "lease": 2,
        "heartbeat of three": 1,
        "complete": 1,
        "release": 2,
        "fail": 2,
        "cancel": 3,
    }


def test_a_claim_walks_its_index_and_fetches_by_place(kee: Caller) -> None:
    make_type(kee)
    make_type(kee, "other", requires=["gpu"])
    with acting_as(kee):
        for _ in range(30):
            services.queue(requester=kee, request=QueueRequest(task_type="index", params={}))
            services.queue(requester=kee, request=QueueRequest(task_type="other", params={}, priority=9))
        given: dict[str, Any] = {
            "holder": kee.principal_id,
            "queues": ["default"],
            "types": None,
            "capabilities": [],
            "capacity": 5,
            "seconds": None,
        }
        with connection.cursor() as cursor:
            cursor.execute("set local enable_seqscan = off")  # a small table would be read whole
        plan = _plan(sql.CLAIM, given)

    assert any("Tid Scan on tasks_hottask h" in line for line in plan)
    # Locked in the order of the index: no sort stands between. The type is matched inside the index.
    lines = [line.strip(" ->") for line in plan]
    locking = next(index for index, line in enumerate(lines) if line.startswith("LockRows"))
    assert lines[locking + 1].startswith("Index Scan using tasks_hottask_claimable")
    assert "task_type_id = ANY" in lines[locking + 2]


_END = dict.fromkeys(
    (
        "error",
        "digest",
        "answer",
        "reason",
        "channel",
        "pointer",
        "content",
        "checksum",
        "size",
        "media_type",
        "summary",
    )
)
_FINDS_ITS_RUN: dict[str, tuple[str, dict[str, Any]]] = {
    "RECLAIM": (sql.RECLAIM, {"queues": ["default"]}),
    "RECLAIM_ALL": (sql.RECLAIM_ALL, {}),
    "CLAIM": (
        sql.CLAIM,
        {"holder": 1, "queues": ["default"], "types": None, "capabilities": [], "capacity": 1, "seconds": None},
    ),
    "WHEREABOUTS": (sql.WHEREABOUTS, {"tasks": [1, 2], "fences": [1, 1]}),
    "PROGRESS": (
        sql.PROGRESS,
        {"runs": [65_537], "percents": [1.0], "messages": ["x"], "checkpoints": [None]},
    ),
    "END": (
        sql.END,
        {
            **_END,
            "task": 1,
            "fence": 1,
            "holder": 1,
            "status": "succeeded",
            "outcome": "succeeded",
            "receipt": "r",
            "gate": "asyncgate",
        },
    ),
    "PUT_BACK": (
        sql.PUT_BACK,
        {"task": 1, "failures": 0, "delay": 0.0, "outcome": "released", "error": None, "digest": b"", "answer": "{}"},
    ),
}


@pytest.mark.parametrize("name", _FINDS_ITS_RUN)
def test_a_run_is_found_by_its_key_behind_the_tenant_wall(kee: Caller, name: str) -> None:
    statement, given = _FINDS_ITS_RUN[name]
    with acting_as(kee):
        with connection.cursor() as cursor:
            cursor.execute(
                """insert into tasks_run (id, tenant_id, holder_id, started_at, message)
                   select (1000000::bigint + n) << 16, %s, %s, now(), '' from generate_series(1, 5000) n""",
                [kee.tenant_id, kee.principal_id],
            )
        lines = [line.strip(" ->") for line in _plan(statement, given)]

    scans = [index for index, line in enumerate(lines) if "Scan" in line and " tasks_run " in line]
    assert len(scans) == 1
    assert "Seq Scan" not in lines[scans[0]]
    # By the key itself: not by walking the index with a filter.
    condition = next(line for line in lines[scans[0] :] if line.startswith("Index Cond"))
    assert condition.startswith("Index Cond: ((id >" if name == "CLAIM" else "Index Cond: (id = ")


@pytest.mark.django_db(transaction=True)
def test_heartbeats_touch_no_index() -> None:
    from tests.factories import make_caller, make_tenant  # noqa: PLC0415

    kee = make_caller(make_tenant("acme"))
    make_type(kee)
    for _ in range(20):
        queue(kee)
    grants = lease(kee, capacity=20)
    beats = [Beat(task_id=grant.task_id, lease_token=grant.lease_token) for grant in grants]
    with connection.cursor() as cursor:
        cursor.execute("select pg_stat_force_next_flush()")
        cursor.execute(_UPDATES)
        updated, hot = cursor.fetchone()
        for _ in range(5):
            with acting_as(kee):
                services.heartbeat(worker=kee, beats=beats)
        cursor.execute("select pg_stat_force_next_flush()")
        cursor.execute(_UPDATES)
        updated_then, hot_then = cursor.fetchone()

    assert (updated_then - updated, hot_then - hot) == (100, 100)
