"""What the verbs cost: statements, plans, kinds of updates. No times are asserted."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.core.sql import hot_cursor
from apps.principals.tenancy import Caller, acting_as, acting_as_operator, acting_as_system
from apps.tasks import services, sql
from apps.tasks.models import TerminalRecord
from apps.tasks.services import Beat, Failure, QueueRequest
from apps.tasks.states import Status
from tests.factories import make_caller, make_tenant
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


def _fill(caller: Caller, *, leased: int = 0, ready: int = 0, ended: int = 0) -> None:
    """Rows in bulk, so that reading a table whole is dear; in the caller's own queue and type."""
    row = """insert into tasks_hottask (task_id, tenant_id, queue_id, task_type_id, ready_at, fence, lease_seconds,
                 priority_rank, failures, max_attempts, expiries, max_expiries, flags, holder_id, lease_expires_at)
             select nextval('tasks_task_id_seq'), k.tenant_id, k.queue_id, k.id, now() - interval '1 hour', 1, 60,
                    5, 0, 3, 0, 3, 0, {holder} from tasks_tasktype k, generate_series(1, %(rows)s) where not k.in_code"""
    with acting_as(caller), connection.cursor() as cursor:
        given = {"tenant": caller.tenant_id, "holder": caller.principal_id}
        cursor.execute(row.format(holder="%(holder)s, now() + interval '1 hour'"), {**given, "rows": leased})
        cursor.execute(row.format(holder="null, null"), {**given, "rows": ready})
        cursor.execute(
            """insert into tasks_terminalrecord (task_id, tenant_id, status, fence, summary, receipt_id, finished_at)
               select nextval('tasks_task_id_seq'), %(tenant)s, 'succeeded', 1, '', 'r', now()
               from generate_series(1, %(rows)s)""",
            {**given, "rows": ended},
        )


def _conditions(plan: list[str], index: str) -> list[str]:
    """How each scan of the index finds its rows; empty for a walk through all of it."""
    lines = [line.strip(" ->") for line in plan]
    scans = [place for place, line in enumerate(lines) if "Scan" in line and f" {index} " in line]
    return [lines[place + 1] if lines[place + 1].startswith("Index Cond") else "" for place in scans]


def test_a_claim_reclaims_among_the_tasks_of_its_own_queues(kee: Caller) -> None:
    stranger = make_caller(make_tenant("globex"))
    make_type(kee)
    make_type(stranger)
    _fill(stranger, leased=3000)
    with acting_as(kee):
        plan = _plan(sql.RECLAIM, {"queues": ["default"]})

    for index in ("leased", "due"):
        conditions = _conditions(plan, f"tasks_hottask_{index}")
        assert len(conditions) == 1
        assert "queue_id = " in conditions[0]
    assert not any("Seq Scan on tasks_hottask" in line for line in plan)


def test_the_search_for_unannounced_work_probes_each_queue_once(kee: Caller) -> None:
    make_type(kee)
    _fill(kee, ready=3000)
    with acting_as_system("test"):
        plan = _plan(sql.UNANNOUNCED, {"types": ["index"]})

    lines = [line.strip(" ->") for line in plan]
    probe = next(place for place, line in enumerate(lines) if " tasks_hottask_claimable " in line)
    assert lines[probe - 1].startswith("Limit")
    assert "queue_id = " in lines[probe + 1]
    assert not any("Seq Scan on tasks_hottask" in line for line in lines)


def test_the_health_of_queues_is_counted_on_indexes(kee: Caller) -> None:
    stranger = make_caller(make_tenant("globex"))
    make_type(kee)
    make_type(stranger)
    _fill(stranger, leased=2000, ready=2000)
    with acting_as(kee):
        plan = _plan(sql.QUEUE_HEALTH, {"tenant": kee.tenant_id})

    assert not any("Seq Scan on tasks_hottask" in line for line in plan)
    for index in ("claimable", "due", "leased"):
        conditions = _conditions(plan, f"tasks_hottask_{index}")
        assert len(conditions) == 1
        assert "queue_id = " in conditions[0]


def test_dead_letters_are_counted_on_an_index(kee: Caller) -> None:
    _fill(kee, ended=3000)
    plans = []
    for acting in (acting_as(kee), acting_as_operator([kee.tenant_id], "test"), acting_as_system("test")):
        with acting, connection.cursor() as cursor:
            with CaptureQueriesContext(connection) as captured:
                TerminalRecord.objects.filter(status=Status.FAILED).count()
            cursor.execute(f"explain {captured[0]['sql']}")
            plans.append("\n".join(line for (line,) in cursor.fetchall()))

    assert ["tasks_terminalrecord_dead" in plan for plan in plans] == [True] * 3


@pytest.mark.django_db(transaction=True)
def test_heartbeats_touch_no_index() -> None:
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
