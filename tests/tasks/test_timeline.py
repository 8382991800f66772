"""What is told of a task's past, page by page."""

from dataclasses import replace

import pytest

from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as
from apps.tasks import selectors, services
from apps.tasks.services import Beat
from tests.factories import make_caller, make_token
from tests.tasks.making import complete, lease_one, make_type, queue
from tests.tasks.test_http import get


@pytest.fixture
def worker(tenant: Tenant) -> Caller:
    return make_caller(tenant, "W", Kind.WORKER)


def _runs_released(worker: Caller, count: int) -> None:
    for _ in range(count):
        grant = lease_one(worker)
        with acting_as(worker):
            services.release(worker=worker, task_id=grant.task_id, lease_token=grant.lease_token)


def test_a_long_timeline_is_read_in_pages_that_miss_and_repeat_nothing(
    tenant: Tenant, kee: Caller, worker: Caller
) -> None:
    make_type(kee)
    task = queue(kee).task_id
    _runs_released(worker, 5)
    complete(worker, lease_one(worker))
    token = make_token(tenant, "Kee")

    status, whole = get(token, f"tasks/{task}/timeline")
    assert (status, whole["next"]) == (200, None)
    pages, cursor = [], ""
    while cursor is not None:
        _, page = get(token, f"tasks/{task}/timeline?limit=4{cursor and f'&cursor={cursor}'}")
        pages.append(page["events"])
        cursor = page["next"]
    assert [event for page in pages for event in page] == whole["events"]
    assert [sum(event["event"] == "leased" for event in page) for page in pages] == [4, 2]
    assert [page[0]["event"] for page in pages] == ["queued", "leased"]
    assert [page[-1]["event"] for page in pages] == ["run_released", "succeeded"]


def test_a_run_tells_its_last_heartbeat_and_what_it_spent(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    task = queue(kee).task_id
    grant = lease_one(worker)
    beat = Beat(task_id=grant.task_id, lease_token=grant.lease_token, tokens=5, cost_usd=0.25, message="half")
    for said in (beat, beat, replace(beat, tokens=10, cost_usd=0.5)):
        with acting_as(worker):
            services.heartbeat(worker=worker, beats=[said])
    with acting_as(kee):
        events = {event.event: event for event in selectors.timeline(task).events}

    assert events["spent"].detail == {"tokens": 10, "cost_usd": 0.5}
    assert (events["heartbeat"].run_id, events["heartbeat"].holder) == (1, "W")
    assert events["progress"].detail == {"percent": None, "message": "half", "checkpoint": False}


def test_a_timeline_is_for_who_asked_and_who_is_told(tenant: Tenant, kee: Caller) -> None:
    make_type(kee)
    task = queue(kee, recipient=None).task_id
    stranger = make_token(tenant, "Hexy")
    assert get(stranger, f"tasks/{task}/timeline")[0] == 404
    assert get(make_token(tenant, "Kee"), f"tasks/{task}/timeline?cursor=x")[0] == 400
    assert get(make_token(tenant, "Kee"), f"tasks/{task}/timeline?limit=101")[0] == 422
