"""Retention: what is deleted of ended tasks, and the partitions of the history."""

import threading
from collections.abc import Iterator

import pytest
from django.db import connection, transaction
from django.db.utils import ProgrammingError

from apps.console import health
from apps.core.sql import fetch
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.tasks import sql
from apps.tasks.models import Budget, FinishedTask, LiveTask, run_key
from apps.tasks.services import artifacts, dependencies, sweeping
from apps.tasks.shapes import BudgetInput
from tests.factories import as_owner, make_caller, make_tenant, make_token, refused
from tests.tasks.making import (
    DAY,
    asked,
    complete,
    do,
    get,
    known,
    later,
    lease_one,
    make_type,
    number,
    queue,
    queue_many,
)
from tests.waiters import together


def test_ended_task_is_deleted_after_its_retention(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    make_type(kee, "brief", retention_seconds=2 * DAY)
    make_type(kee, "long", retention_seconds=500 * DAY)
    middle, brief, long = (do(kee, worker, name) for name in ("index", "brief", "long"))
    open_task = number(queue(kee))
    lease_one(worker)
    walk = sweeping.Walk()
    assert walk.forget() == 0
    later(3 * DAY)
    assert walk.forget() == 1
    assert known(kee)[:2] == [{middle, long, open_task}, {middle, long}]
    later(91 * DAY)
    walk = sweeping.Walk()
    assert walk.forget() == 1
    assert known(kee) == [{long, open_task}, {long}, {long, open_task}, {long}]
    with acting_as(kee):
        assert LiveTask.objects.count() == 1
        with refused("unknown_task"):
            artifacts.fetch_result(caller=kee, task_id=brief)


def test_retention_is_at_least_a_day_in_every_tenant(kee: Caller, worker: Caller) -> None:
    stranger = make_caller(make_tenant("globex"))
    for caller in (kee, stranger):
        make_type(caller, retention_seconds=1)
    do(kee, worker)
    do(stranger, stranger)
    later(DAY - 10)
    assert sweeping.Walk().forget() == 0
    later(DAY + 10)
    assert sweeping.Walk().forget() == 2
    assert known(kee)[0] == known(stranger)[0] == set()


def test_dependency_is_kept(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    make_type(kee, "other", queue="other")
    first = number(queue(kee))
    queue(kee, "other", depends_on=(first,))
    complete(worker, lease_one(worker))
    later(91 * DAY)
    assert sweeping.Walk().forget() == 0
    dependencies.release_dependants()
    assert sweeping.Walk().forget() == 1


def test_idempotency_key_outlives_its_task(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    task = do(kee, worker, idempotency_key="k")
    later(91 * DAY)
    assert sweeping.Walk().forget() == 1
    again = queue(kee, idempotency_key="k")
    assert (again.is_duplicate, number(again)) == (True, task)
    later(401 * DAY)
    assert sweeping.Walk().forget() == 1
    assert not queue(kee, idempotency_key="k").is_duplicate


def test_walk_continues_and_starts_again(kee: Caller, worker: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.tasks.services.sweeping.FORGET_BATCH", 2)
    make_type(kee)
    make_type(kee, "long", retention_seconds=500 * DAY)
    for name in ("long", "long", "long", "index", "long", "index"):
        do(kee, worker, name)
    later(91 * DAY)
    walk = sweeping.Walk()
    assert [walk.forget() for _ in range(5)] == [0, 1, 1, 0, 0]
    assert len(known(kee)[0]) == 4
    later(501 * DAY)
    assert sum(walk.forget() for _ in range(5)) == 4


WIDTH = 4_000_000
TABLES = ("tasks_run", "tasks_spend", "tasks_task", "task_history")


def ranges() -> set[tuple[int, int]]:
    with acting_as_system("test"):
        return {(lower, upper) for lower, upper in fetch("select lower, upper from tasks_partition")}


def last_id() -> int:
    with acting_as_system("test"):
        (found,) = fetch("select last_value from tasks_task_id_seq")[0]
    return int(found)


def go_on_from(task: int) -> None:
    """The next task has this id. No transaction takes that back, so it is only ever more."""
    assert task > last_id()
    with transaction.atomic(), as_owner() as cursor:
        cursor.execute("select setval('tasks_task_id_seq', %s)", [task - 1])


def at_the_edge(left: int) -> tuple[int, int]:
    """The next ids are the last ones of a partition, which holds nothing yet and whose range is answered."""
    while sweeping.make_partitions():
        pass
    if not any(lower > last_id() for lower, _ in ranges()):
        # The last range is a wide one, and in use: go on to its end, so that another is made.
        go_on_from(max(upper for _, upper in ranges()) - 1)
        sweeping.make_partitions()
    used = last_id()
    sweeping.drop_partitions()
    lower, upper = min((lower, upper) for lower, upper in ranges() if lower > used)
    go_on_from(upper - left)
    assert sweeping.make_partitions() == 1
    return lower, upper


def place(table: str, key: int) -> str:
    column = "id" if table in {"tasks_run", "tasks_task"} else "task_id"
    with acting_as_system("test"):
        (found,) = fetch(f"select tableoid::regclass::text from {table} where {column} = %s limit 1", [key])[0]
    return str(found)


def test_partition_is_dropped_after_its_retention(tenant: Tenant, kee: Caller, worker: Caller) -> None:
    lower, upper = at_the_edge(2)
    make_type(kee)
    old = [do(kee, worker, budget=BudgetInput(tokens=100)) for _ in range(2)]
    young = do(kee, worker)
    assert (old[-1], young) == (upper - 1, upper)
    assert place("tasks_run", run_key(old[0], 1)) == f"tasks_run_p{lower // WIDTH}"
    later(89 * DAY)
    sweeping.drop_partitions()
    assert (lower, upper) in ranges()

    later(90 * DAY + 100)
    assert sweeping.Walk().forget() == 1, "only what is not left to the drop goes by itself"
    assert sweeping.drop_partitions() == 1
    assert (lower, upper) not in ranges()
    assert known(kee) == [set(), set(), set(), set()]
    with acting_as(kee):
        assert not Budget.objects.exists()
        with refused("unknown_task"):
            artifacts.fetch_result(caller=kee, task_id=old[0])
    assert get(make_token(tenant), f"tasks/task_{old[0]}")[0] == 404


def test_partition_with_an_open_task_stays(kee: Caller, worker: Caller) -> None:
    here = at_the_edge(2)
    make_type(kee)
    make_type(kee, "other", queue="other")
    do(kee, worker)
    waiting = number(queue(kee, "other"))
    do(kee, worker)
    later(90 * DAY + 100)
    assert sweeping.drop_partitions() == 0
    assert sweeping.Walk().forget() == 1
    later(112 * DAY)
    assert sweeping.Walk().forget() == 0
    later(113 * DAY)
    assert sweeping.Walk().forget() == 1
    assert sweeping.drop_partitions() == 0
    assert here in ranges()
    assert known(kee)[0] == {waiting}
    complete(worker, lease_one(worker, queues=("other",)))
    later(205 * DAY)
    assert sweeping.drop_partitions() == 1
    assert known(kee) == [set(), set(), set(), set()]


def test_longer_retention_of_a_type_keeps_its_partition(kee: Caller, worker: Caller) -> None:
    here = at_the_edge(3)
    make_type(kee)
    make_type(kee, "long", retention_seconds=500 * DAY)
    # The last to end is not the one that is kept.
    for name in ("index", "long", "index"):
        do(kee, worker, name)
    long, last = here[1] - 2, number(queue(kee))
    later(113 * DAY)
    assert sweeping.drop_partitions() == 0
    assert sweeping.Walk().forget() == 2
    assert known(kee) == [{long, last}, {long}, {long}, {long}]
    later(501 * DAY)
    assert sweeping.drop_partitions() == 1


def test_partition_of_a_dependency_stays(kee: Caller, worker: Caller) -> None:
    at_the_edge(2)
    make_type(kee)
    make_type(kee, "other", queue="other")
    first = number(queue(kee))
    queue(kee)
    queue(kee, "other", depends_on=(first,))
    for _ in range(2):
        complete(worker, lease_one(worker))
    later(92 * DAY)
    assert sweeping.drop_partitions() == 0
    dependencies.release_dependants()
    assert sweeping.drop_partitions() == 1


def test_tasks_are_inserted_without_a_partition(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    sweeping.make_partitions()
    go_on_from(max(upper for _, upper in ranges()) + 3 * WIDTH)
    before = ranges()
    task = do(kee, worker)
    assert [place(table, run_key(task, 1) if table == "tasks_run" else task) for table in TABLES] == [
        f"{table}_default" for table in TABLES
    ]
    # What comes then has partitions again, beyond what is in the default ones.
    sweeping.make_partitions()
    ((lower, upper),) = {found for found in ranges() - before if found[0] >= task}
    assert lower > task
    go_on_from(lower)
    assert place("tasks_task", do(kee, worker)) == f"tasks_task_p{lower // WIDTH}"
    later(91 * DAY)
    assert sweeping.Walk().forget() == 2
    assert (lower, upper) in ranges()


def test_doctor_reports_missing_partitions(kee: Caller, worker: Caller) -> None:
    def doctored() -> tuple[bool, str]:
        (found,) = [finding for finding in health.examination() if finding.part == "partitions"]
        return found.ok, found.says

    make_type(kee)
    sweeping.make_partitions()
    go_on_from(max(upper for _, upper in ranges()) - 1)
    do(kee, worker)
    assert doctored() == (True, "room for 0 tasks")
    do(kee, worker)
    assert doctored() == (False, "1 tasks past the last one")
    sweeping.make_partitions()
    assert doctored()[0]


def test_partitions_grow_wider_with_the_history(kee: Caller) -> None:
    make_type(kee)
    _, upper = at_the_edge(1)
    assert sweeping.make_partitions() == 0
    assert (upper, upper + WIDTH) in ranges()
    oldest = number(queue(kee))
    while max(ranges())[1] - oldest < 50 * WIDTH:
        go_on_from(max(ranges())[1] - 1)
        assert sweeping.make_partitions() == 1
    made = sorted(found for found in ranges() if found[0] > upper)
    assert [above - below for below, above in made] == [
        max(1, (below - oldest) // (5 * WIDTH)) * WIDTH for below, _ in made
    ]
    assert len(made) < 20


def test_partitions_are_protected_like_their_parents(db: None) -> None:
    sweeping.make_partitions()
    with connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(
                """select relid::regclass::text, isleaf,
                       (select array_agg(polname order by polname) from pg_policy where polrelid = relid),
                       (select relrowsecurity from pg_class where oid = relid),
                       (select array_agg(tgname order by tgname) from pg_trigger where tgrelid = relid and not tgisinternal),
                       (select count(*) from pg_index where indrelid = relid),
                       (select array_agg(conname order by conname) from pg_constraint
                        where conrelid = relid and contype in ('c', 'f')),
                       (select array_agg(role order by role) from unnest(array[
                            'gatehouse_app', 'gatehouse_operator', 'gatehouse_system']) as role
                        where has_table_privilege(role, relid, 'select, insert, update, delete, truncate'))
                   from pg_partition_tree(%s::regclass) order by level""",
                [table],
            )
            ((_, _, *parent), *partitions) = cursor.fetchall()
            assert parent.pop() == ["gatehouse_app", "gatehouse_operator", "gatehouse_system"]
            assert len(partitions) >= 3
            for name, isleaf, *found in partitions:
                assert isleaf
                assert found.pop() is None, name
                assert found == parent, name


def test_only_the_system_makes_and_drops_partitions(kee: Caller) -> None:
    for call in (sql.MAKE_PARTITIONS, "select tasks_drop_partition(0, now())"):
        with acting_as(kee), pytest.raises(ProgrammingError, match="permission denied"), transaction.atomic():
            connection.cursor().execute(call)


def test_only_full_ended_and_old_ranges_are_dropped(kee: Caller, worker: Caller) -> None:
    def dropped(lower: int, since: str = "infinity") -> bool | None:
        with acting_as_system("test"):
            (found,) = fetch(sql.DROP_PARTITION, {"lower": lower, "since": since}, hot=True)[0]
        return None if found is None else bool(found)

    make_type(kee)
    lower, upper = at_the_edge(2)
    assert dropped(lower) is False
    queue_many(kee, *[asked()] * 2)
    assert dropped(lower) is False
    for _ in range(2):
        complete(worker, lease_one(worker))
    queue(kee)
    assert dropped(lower, "1970-01-01") is False
    assert dropped(lower) is True
    assert (lower, upper) not in ranges()


@pytest.fixture
def old(transactional_db: None) -> Iterator[tuple[Caller, tuple[int, int]]]:
    """A full partition of committed tasks that ended a long time ago, and whose they are."""
    kee = make_caller(make_tenant("acme"))
    make_type(kee)
    here = at_the_edge(2)
    for _ in range(2):
        do(kee, kee)
    queue(kee)
    with transaction.atomic(), as_owner() as cursor:
        cursor.execute("alter table task_history disable trigger user")
        cursor.execute("update task_history set finished_at = now() - interval '91 days'")
        cursor.execute("alter table task_history enable trigger user")
    yield kee, here
    sweeping.drop_partitions()


def test_rival_drops_drop_a_partition_once(old: tuple[Caller, tuple[int, int]]) -> None:
    before = ranges()
    dropped = together(sweeping.drop_partitions, sweeping.drop_partitions)
    gone = before - ranges()
    assert old[1] in gone
    # Neighbours leave empty ones behind, of which either may drop some.
    assert sum(dropped) == len(gone)


def test_tasks_go_on_while_partitions_come_and_go(old: tuple[Caller, tuple[int, int]]) -> None:
    kee, here = old
    worked = threading.Event()
    complete(kee, lease_one(kee))

    def work() -> None:
        try:
            for _ in range(40):
                queue(kee)
                complete(kee, lease_one(kee))
        finally:
            worked.set()

    def come_and_go() -> None:
        while not worked.is_set() or here in ranges():
            sweeping.drop_partitions()
            sweeping.make_partitions()

    together(work, come_and_go)
    with acting_as(kee):
        assert FinishedTask.objects.count() == 41
    assert here not in ranges()
