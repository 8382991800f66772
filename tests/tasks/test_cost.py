"""What the verbs cost: statements, plans, kinds of updates. No times are asserted."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.core.sql import hot_cursor
from apps.principals.tenancy import Caller, acting_as, acting_as_operator, acting_as_system
from apps.tasks import services, sql
from apps.tasks.models import FinishedTask, LiveTask
from apps.tasks.services import Beat, Failure, QueueRequest
from apps.tasks.states import Status
from tests import ground
from tests.factories import make_caller, make_tenant
from tests.tasks.making import NO_RESULT, complete, fill, lease, lease_one, make_type, make_types, queue

_UPDATES = """
select pg_stat_get_tuples_updated('task_live'::regclass), pg_stat_get_tuples_hot_updated('task_live'::regclass)
"""


def _statements(act: Callable[[], Any]) -> int:
    """How many statements of AsyncGate's own a verb makes: receipts and transactions are others' business."""
    with CaptureQueriesContext(connection) as captured:
        act()
    own = [query["sql"] for query in captured if "tasks_" in query["sql"]]
    return len(own)


def _spoken(act: Callable[[], Any]) -> int:
    """How many statements a verb makes with all that hangs on it, its transaction's own aside."""
    with CaptureQueriesContext(connection) as captured:
        act()
    return len([query for query in captured if "SAVEPOINT" not in query["sql"]])


def _plan(statement: str, given: dict[str, Any]) -> list[str]:
    with hot_cursor() as cursor:
        cursor.execute(f"explain {statement}", given)
        lines = [line for (line,) in cursor.fetchall()]
    return ground.unparted(lines)


def test_a_task_costs_eight_statements_from_its_queueing_to_its_receipt(kee: Caller) -> None:
    make_type(kee)
    request = QueueRequest(task_type="index", params={})
    # The first receipt of all makes an inbox besides.
    queue(kee)
    complete(kee, lease_one(kee))
    with acting_as(kee):
        # Its type and queue; who is named; the task; its receipt.
        assert _spoken(lambda: services.queue(requester=kee, request=request)) == 4
        services.queue(requester=kee, request=request)
        assert _spoken(lambda: services.lease(worker=kee, queues=["default"])) == 1
        (grant,) = services.lease(worker=kee, queues=["default"])
        given: dict[str, Any] = {"task_id": grant.task_id, "lease_token": grant.lease_token, "delivery": NO_RESULT}
        # The end; the receipt that it answers; its own receipt with what that closes and its place.
        assert _spoken(lambda: services.complete(worker=kee, **given)) == 3


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
        "lease": 1,
        "heartbeat of three": 1,
        "complete": 1,
        "release": 2,
        "fail": 2,
        "cancel": 3,
    }


def test_a_claim_walks_its_index_and_fetches_by_place(kee: Caller) -> None:
    make_type(kee)
    make_type(kee, "other", requires=["gpu"])
    fill(kee, ready=3000)
    ground.analyzed("task_live")
    with acting_as(kee):
        given: dict[str, Any] = {
            "holder": kee.principal_id,
            "queues": ["default"],
            "types": None,
            "capabilities": [],
            "capacity": 5,
            "seconds": None,
            "floor": "-infinity",
        }
        plan = _plan(sql.CLAIM, given)

    assert any("Tid Scan on task_live h" in line for line in plan)
    # Locked in the order of the index: no sort stands between. The type is matched inside the index.
    lines = [line.strip(" ->") for line in plan]
    locking = next(index for index, line in enumerate(lines) if line.startswith("LockRows"))
    assert lines[locking + 1].startswith("Index Scan using task_live_claimable")
    assert "task_type_id = ANY" in lines[locking + 2]
    # What has been claimed before is not walked over again.
    assert re.search(r"Index Cond: .*ready_at >= ", lines[locking + 2])


_FINDS_ITS_RUN: dict[str, tuple[str, dict[str, Any]]] = {
    "RECLAIM": (sql.RECLAIM, {"queues": ["default"]}),
    "RECLAIM_ALL": (sql.RECLAIM_ALL, {}),
    "CLAIM": (
        sql.CLAIM,
        {
            "holder": 1,
            "queues": ["default"],
            "types": None,
            "capabilities": [],
            "capacity": 1,
            "seconds": None,
            "floor": "-infinity",
        },
    ),
    "CLAIM_WITHIN_LIMITS": (
        sql.CLAIM_WITHIN_LIMITS,
        {
            "holder": 1,
            "queues": ["default"],
            "types": None,
            "capabilities": [],
            "capacity": 1,
            "seconds": None,
            "floor": "-infinity",
        },
    ),
    "GRANTED": (sql.GRANTED, {"tasks": [1], "fences": [1], "seconds": [1]}),
    "WHEREABOUTS": (sql.WHEREABOUTS, {"tasks": [1, 2], "fences": [1, 1]}),
    "PROGRESS": (
        sql.PROGRESS,
        {"runs": [65_537], "percents": [1.0], "messages": ["x"], "checkpoints": [None], "sequences": [1]},
    ),
    "END": (sql.END, {"ends": "[]", "tasks": [1], "holder": 1, "gate": "asyncgate"}),
    "PUT_BACK": (sql.PUT_BACK, {"backs": "[]"}),
}


@pytest.mark.parametrize("name", _FINDS_ITS_RUN)
def test_a_run_is_found_by_its_key_behind_the_tenant_wall(kee: Caller, name: str) -> None:
    statement, given = _FINDS_ITS_RUN[name]
    make_type(kee)
    fill(kee, ready=1000, leased=20, runs=20_000)
    ground.analyzed("task_live", "tasks_run")
    with acting_as(kee):
        lines = [line.strip(" ->") for line in _plan(statement, given)]

    # One of each partition, by the key itself: not by walking the index with a filter.
    scans = [index for index, line in enumerate(lines) if "Scan" in line and " on tasks_run " in line]
    assert len(scans) >= 3
    for scan in scans:
        assert "Seq Scan" not in lines[scan]
        condition = next(line for line in lines[scan:] if line.startswith("Index Cond"))
        assert condition.startswith(
            "Index Cond: ((id >" if name in {"CLAIM", "CLAIM_WITHIN_LIMITS", "GRANTED"} else "Index Cond: (id = "
        )


_AT_HAND: dict[str, tuple[str, dict[str, Any]]] = {
    "END": _FINDS_ITS_RUN["END"],
    "PUT_BACK": _FINDS_ITS_RUN["PUT_BACK"],
    "LOCK": (sql.LOCK, {"tasks": [1]}),
    "LOCK_LEASES": (sql.LOCK_LEASES, {"tasks": [1], "fences": [1], "holder": 1}),
    "HEARTBEAT": (sql.HEARTBEAT, {"tasks": [1], "fences": [1], "holder": 1, "relaxed": True}),
}


@pytest.mark.parametrize("known", [ground.analyzed, ground.unanalyzed])
@pytest.mark.parametrize("name", _AT_HAND)
def test_a_task_at_hand_is_found_by_its_key_among_thousands_that_are_open(
    kee: Caller, name: str, known: Callable[..., None]
) -> None:
    statement, given = _AT_HAND[name]
    make_type(kee)
    fill(kee, ready=3000, leased=20)
    known("task_live")
    with acting_as(kee):
        plan = _plan(statement, given)

    assert not any("Seq Scan on task_live" in line for line in plan)
    assert any(condition.startswith("Index Cond: (task_id = ") for condition in _conditions(plan, "task_live_pkey"))


def _conditions(plan: list[str], index: str) -> list[str]:
    """How each scan of the index finds its rows; empty for a walk through all of it."""
    lines = [line.strip(" ->") for line in plan]
    scans = [place for place, line in enumerate(lines) if "Scan" in line and f" {index} " in line]
    return [lines[place + 1] if lines[place + 1].startswith("Index Cond") else "" for place in scans]


def test_a_claim_reclaims_among_the_tasks_of_its_own_queues(kee: Caller) -> None:
    stranger = make_caller(make_tenant("globex"))
    make_type(kee)
    make_types(stranger)
    fill(stranger, leased=400)
    ground.analyzed("task_live")
    with acting_as(kee):
        plan = _plan(sql.RECLAIM, {"queues": ["default"]})

    for index in ("leased", "due"):
        conditions = _conditions(plan, f"task_live_{index}")
        assert len(conditions) == 1
        assert "queue_id = " in conditions[0]
    assert not any("Seq Scan on task_live" in line for line in plan)


@pytest.mark.ci
def test_claims_among_a_hundred_thousand_find_their_rows_by_index(kee: Caller) -> None:
    make_type(kee)
    fill(kee, ready=100_000, leased=100)
    with acting_as(kee):
        LiveTask.objects.filter(task_id__in=LiveTask.objects.values("task_id")[:50]).update(requester=kee.principal_id)
    ground.analyzed("task_live")
    given: dict[str, Any] = {"holder": kee.principal_id, "queues": ["default"], "types": None, "capabilities": []}
    with acting_as(kee):
        for statement, index in ((sql.CLAIM, "claimable"), (sql.CLAIM_WITHIN_LIMITS, "claimable_fairly")):
            plan = _plan(statement, {**given, "capacity": 50, "seconds": None, "floor": "-infinity"})
            assert not any("Seq Scan on task_live" in line for line in plan), plan
            assert any("queue_id = " in condition for condition in _conditions(plan, f"task_live_{index}"))
        # The order of the index is the order of the claim: nothing is sorted below the limit.
        lines = [
            line.strip(" ->")
            for line in _plan(sql.CLAIM, {**given, "capacity": 50, "seconds": None, "floor": "-infinity"})
        ]
        locking = next(place for place, line in enumerate(lines) if line.startswith("LockRows"))
        assert lines[locking + 1].startswith("Index Scan using task_live_claimable")


@pytest.mark.parametrize("known", [ground.analyzed, ground.unanalyzed])
def test_a_claim_within_limits_fetches_what_it_has_chosen_by_place(kee: Caller, known: Callable[..., None]) -> None:
    make_type(kee, concurrency=5)
    fill(kee, ready=3000)
    known("task_live")
    given: dict[str, Any] = {"holder": kee.principal_id, "queues": ["default"], "types": None, "capabilities": []}
    with acting_as(kee):
        plan = _plan(sql.CLAIM_WITHIN_LIMITS, {**given, "capacity": 5, "seconds": None, "floor": "-infinity"})

    # The one that is locked, and the one that is changed.
    assert sum("Tid Scan on task_live" in line for line in plan) == 2, plan


@pytest.mark.parametrize("statement", [sql.UNANNOUNCED, sql.KEPT_BACK])
def test_the_search_for_work_that_nobody_takes_probes_each_queue_once(kee: Caller, statement: str) -> None:
    make_type(kee)
    fill(kee, ready=3000)
    ground.analyzed("task_live")
    with acting_as_system("test"):
        plan = _plan(statement, {"types": ["index"]})

    lines = [line.strip(" ->") for line in plan]
    probe = next(place for place, line in enumerate(lines) if " task_live_claimable " in line)
    assert lines[probe - 1].startswith("Limit")
    assert "queue_id = " in lines[probe + 1]
    assert not any("Seq Scan on task_live" in line for line in lines)


def test_what_is_available_again_is_found_by_one_bounded_probe_of_each_queue(kee: Caller) -> None:
    make_type(kee)
    # Many more than the probe is bounded to, so that to read them all is dearer wherever their rows have come to lie.
    fill(kee, ready=30_000)
    ground.analyzed("task_live")
    with acting_as(kee):
        plan = _plan(sql.AVAILABLE_AGAIN, {"queue": None, "task_type": None})

    lines = [line.strip(" ->") for line in plan]
    probe = next(place for place, line in enumerate(lines) if " task_live_claimable " in line)
    assert lines[probe - 1].startswith("Limit")
    assert "queue_id = " in lines[probe + 1]
    assert not any("Seq Scan on task_live" in line for line in lines)


def test_the_health_of_queues_is_counted_on_indexes(kee: Caller) -> None:
    stranger = make_caller(make_tenant("globex"))
    make_type(kee)
    make_types(stranger)
    fill(stranger, leased=400, ready=400)
    ground.analyzed("task_live")
    with acting_as(kee):
        plan = _plan(sql.QUEUE_HEALTH, {"tenant": kee.tenant_id})

    assert not any("Seq Scan on task_live" in line for line in plan)
    for index in ("claimable", "due", "leased"):
        conditions = _conditions(plan, f"task_live_{index}")
        assert len(conditions) == 1
        assert "queue_id = " in conditions[0]


def test_dead_letters_are_counted_on_an_index(kee: Caller) -> None:
    fill(kee, ended=3000)
    ground.analyzed("task_history")
    plans = []
    for acting in (acting_as(kee), acting_as_operator([kee.tenant_id], "test"), acting_as_system("test")):
        with acting, connection.cursor() as cursor:
            with CaptureQueriesContext(connection) as captured:
                FinishedTask.objects.filter(status=Status.FAILED).count()
            cursor.execute(f"explain {captured[0]['sql']}")
            plans.append("\n".join(ground.unparted(line for (line,) in cursor.fetchall())))

    assert ["task_history_dead" in plan for plan in plans] == [True] * 3


@pytest.mark.django_db(transaction=True)
def test_heartbeats_touch_no_index() -> None:
    kee = make_caller(make_tenant("acme"))
    make_type(kee)
    for _ in range(5):  # all their versions have room in one page, whatever is pruned when
        queue(kee)
    grants = lease(kee, capacity=5)
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

    assert (updated_then - updated, hot_then - hot) == (25, 25)


def _waits_for_the_disk(act: Callable[[], Any]) -> bool:
    """Whether the commit of a transaction in which this was done does."""
    with connection.cursor() as cursor:
        cursor.execute("set local synchronous_commit = on")
        act()
        cursor.execute("show synchronous_commit")
        (setting,) = cursor.fetchone()
    return str(setting) != "off"


@pytest.mark.parametrize(
    ("told", "waits"),
    [
        ([{}], False),
        ([{"percent": 5.0, "message": "some", "sequence": 1}], False),
        ([{"checkpoint": {"n": 1}}], True),
        ([{"checkpoint": {}}], True),
        ([{"tokens": 1}], True),
        ([{"cost_usd": 0.01}], True),
        ([{}, {}], False),
        ([{}, {"checkpoint": {"n": 1}}], True),
        ([{"tokens": 1}, {}], True),
    ],
)
def test_a_checkpoint_and_spend_are_on_the_disk_when_they_are_acknowledged(
    kee: Caller, told: list[dict[str, Any]], *, waits: bool
) -> None:
    make_type(kee)
    for _ in told:
        queue(kee)
    beats = [
        Beat(task_id=grant.task_id, lease_token=grant.lease_token, **more)
        for grant, more in zip(lease(kee, capacity=len(told)), told, strict=True)
    ]
    with acting_as(kee):
        assert _waits_for_the_disk(lambda: services.heartbeat(worker=kee, beats=beats)) is waits


@pytest.mark.parametrize("revokes", [False, True])
def test_a_run_that_a_heartbeat_revokes_is_so_on_the_disk(kee: Caller, *, revokes: bool) -> None:
    make_type(kee, stuck_after=1, revokes_stuck=revokes)
    queue(kee)
    grant = lease_one(kee)
    beats = [Beat(task_id=grant.task_id, lease_token=grant.lease_token)]
    answers: list[services.BeatAnswer] = []
    with acting_as(kee):
        waits = _waits_for_the_disk(lambda: answers.extend(services.heartbeat(worker=kee, beats=beats)))

    assert (answers[0].status, waits) == (("lost", True) if revokes else ("ok", False))
