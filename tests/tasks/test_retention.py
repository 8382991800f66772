"""What is kept of tasks, and what goes."""

from typing import Any

import pytest

from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as
from apps.tasks import services
from apps.tasks.errors import UnknownTask
from apps.tasks.models import FinishedTask, LiveTask, Run, Spend, Task
from apps.tasks.services import Beat
from tests.factories import make_caller, make_tenant
from tests.tasks.making import complete, lease_one, make_type, number, queue
from tests.tasks.test_deadlines import later

DAY = 86_400


@pytest.fixture
def worker(tenant: Tenant) -> Caller:
    return make_caller(tenant, "W", Kind.WORKER)


def do(kee: Caller, worker: Caller, task_type: str = "index", **more: Any) -> int:
    """A task with a run, spend and an end."""
    task = number(queue(kee, task_type, **more))
    grant = lease_one(worker, task_types=[task_type])
    with acting_as(worker):
        beat = Beat(task_id=grant.task_id, lease_token=grant.lease_token, tokens=1)
        services.heartbeat(worker=worker, beats=[beat])
    complete(worker, grant)
    return task


def known(kee: Caller) -> list[set[int]]:
    with acting_as(kee):
        return [
            set(Task.objects.values_list("pk", flat=True)),
            set(FinishedTask.objects.values_list("pk", flat=True)),
            {run.task_id for run in Run.objects.all()},
            set(Spend.objects.values_list("task_id", flat=True)),
        ]


def test_a_task_goes_whole_when_it_has_been_kept_its_time_and_what_is_open_never(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    make_type(kee, "brief", retention_seconds=2 * DAY)
    make_type(kee, "long", retention_seconds=500 * DAY)
    middle, brief, long = (do(kee, worker, name) for name in ("index", "brief", "long"))
    open_task = number(queue(kee))
    lease_one(worker)
    walk = services.Walk()
    assert walk.forget() == 0
    later(3 * DAY)
    assert walk.forget() == 1
    assert known(kee)[:2] == [{middle, long, open_task}, {middle, long}]
    later(91 * DAY)
    walk = services.Walk()
    assert walk.forget() == 1
    assert known(kee) == [{long, open_task}, {long}, {long, open_task}, {long}]
    with acting_as(kee):
        assert LiveTask.objects.count() == 1
        with pytest.raises(UnknownTask):
            services.fetch_result(caller=kee, task_id=brief)


def test_no_type_is_kept_less_than_a_day(kee: Caller, worker: Caller) -> None:
    make_type(kee, retention_seconds=1)
    task = do(kee, worker)
    later(DAY - 10)
    assert services.Walk().forget() == 0
    assert known(kee)[0] == {task}
    later(DAY + 10)
    assert services.Walk().forget() == 1


def test_what_something_waits_for_stays(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    make_type(kee, "other", queue="other")
    first = number(queue(kee))
    queue(kee, "other", depends_on=(first,))
    complete(worker, lease_one(worker))
    later(91 * DAY)
    assert services.Walk().forget() == 0
    services.release_dependants()
    assert services.Walk().forget() == 1


def test_a_key_outlives_its_task(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    task = do(kee, worker, idempotency_key="k")
    later(91 * DAY)
    assert services.Walk().forget() == 1
    again = queue(kee, idempotency_key="k")
    assert (again.is_duplicate, number(again)) == (True, task)
    later(401 * DAY)
    assert services.Walk().forget() == 1
    assert not queue(kee, idempotency_key="k").is_duplicate


def test_the_walk_goes_on_where_it_stopped_and_round_again(
    kee: Caller, worker: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.tasks.services.retaining.FORGET_BATCH", 2)
    make_type(kee)
    make_type(kee, "long", retention_seconds=500 * DAY)
    for name in ("long", "long", "long", "index", "long", "index"):
        do(kee, worker, name)
    later(91 * DAY)
    walk = services.Walk()
    assert [walk.forget() for _ in range(5)] == [0, 1, 1, 0, 0]
    assert len(known(kee)[0]) == 4
    later(501 * DAY)
    assert sum(walk.forget() for _ in range(5)) == 4


def test_every_tenants_history_goes_and_only_by_the_system(kee: Caller, worker: Caller) -> None:
    stranger = make_caller(make_tenant("globex"))
    make_type(kee)
    make_type(stranger)
    do(kee, worker)
    do(stranger, stranger)
    later(91 * DAY)
    assert services.Walk().forget() == 2
    assert known(kee)[0] == known(stranger)[0] == set()
