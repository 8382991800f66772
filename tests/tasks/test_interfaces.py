"""Tasks over HTTP, in the console, and the figures of queues."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.principals.models import Tenant
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.tasks import selectors
from apps.tasks.models import LiveTask, QueueHistory, Run
from apps.tasks.services import operating
from apps.tasks.shapes import QueueFigures
from apps.tasks.states import BulkVerb
from tests.console.test_site import SENT
from tests.factories import make_token, refused
from tests.tasks.making import (
    DAY,
    FUTURE,
    LONG_AGO,
    SCHEMA,
    asked,
    cancel,
    complete,
    fail_next,
    get,
    later,
    lease,
    lease_one,
    make_type,
    number,
    queue,
    queue_many,
    send,
    status,
)


@pytest.fixture
def agent(tenant: Tenant, kee: Caller) -> str:
    make_type(kee, schema=SCHEMA)
    return make_token(tenant, "Kee")


def test_names_that_do_not_fit_a_path_are_refused(tenant: Tenant, agent: str) -> None:
    owner = make_token(tenant, "Owner", scopes=[Scope.ADMIN, Scope.TASKS_QUEUE])
    for draft in ({"name": "a/b"}, {"name": ".."}, {"name": "parse", "queue": "a/b"}):
        answered, problem = send(owner, "task-types", draft)
        assert (answered, problem["code"]) == (422, "invalid")
    assert [one["name"] for one in get(agent, "task-types")[1]["task_types"]] == ["index"]


@pytest.mark.parametrize("limit", [{"concurrency": 1}, {"rate": {"leases": 1, "per_seconds": 60}}, {"enabled": False}])
def test_limits_of_a_type_need_a_scope_of_their_own_once_it_is_there(tenant: Tenant, limit: dict[str, Any]) -> None:
    agent = make_token(tenant, "Asker", scopes=[Scope.TASKS_QUEUE])
    manager = make_token(tenant, "Manager", scopes=[Scope.TASKS_QUEUE, Scope.TASKS_MANAGE])
    assert send(agent, "task-types", {"name": "more", "title": "More", **limit})[0] == 201
    assert send(agent, "task-types", {"name": "more", "title": "Again", **limit})[0] == 200
    assert send(agent, "task-types", {"name": "more"})[1].items() >= limit.items(), "what is left out stays"
    other = {"concurrency": None, "rate": None, "enabled": True}
    assert send(agent, "task-types", {"name": "more", **other})[1]["code"] == "missing_scope"
    assert send(manager, "task-types", {"name": "more", **other})[1].items() >= other.items()
    assert send(agent, "task-types", {"name": "more", **limit})[1]["code"] == "missing_scope"


def act(console: Client, model: str, name: str, pk: int) -> Any:
    return console.post(reverse(f"admin:tasks_{model}_{name}", args=[pk]), SENT)


def page(console: Client, model: str, pk: int) -> str:
    return console.get(reverse(f"admin:tasks_{model}_change", args=[pk])).content.decode()


def test_operator_retries_all_that_match_and_sees_what_was_skipped(
    console: Client, kee: Caller, worker: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.tasks.services.operating._BULK_BATCH", 2)
    make_type(kee)
    for _ in range(3):
        queue(kee)
        fail_next(worker)
    done = number(queue(kee))
    complete(worker, lease_one(worker))
    sent = {"action": "retry_selected", "_selected_action": [done], "select_across": "1"}
    assert "Say why" in console.post(reverse("admin:tasks_task_changelist"), sent, follow=True).content.decode()
    answer = console.post(reverse("admin:tasks_task_changelist"), sent | {"reason": "the mail server is back"})

    assert "0 of 4: 0 done" in console.get(answer["Location"]).content.decode()
    assert [operating.go_on(), operating.go_on(), operating.go_on()] == [2, 2, 0]
    shown = console.get(answer["Location"]).content.decode()
    for text in ("4 of 4: 3 done, 1 skipped", f"task_{done} has not failed", "the mail server is back"):
        assert text in shown
    assert "http-equiv" not in shown
    with acting_as(kee):
        assert LiveTask.objects.count() == 3
    again = console.post(reverse("admin:tasks_task_changelist"), sent | {"reason": "sure?"})["Location"]
    while operating.go_on():
        pass
    shown = console.get(again).content.decode()
    assert "7 of 7: 0 done, 7 skipped" in shown
    assert "It was retried as task_" in shown

    sent = {"action": "cancel_selected", "_selected_action": [done], "select_across": "1", "reason": "enough"}
    console.post(reverse("admin:tasks_task_changelist") + "?status=open", sent)
    while operating.go_on():
        pass
    with acting_as(kee):
        assert LiveTask.objects.count() == 0


@pytest.mark.parametrize("verb", BulkVerb)
def test_bulk_action_skips_what_was_forgotten_meanwhile(kee: Caller, worker: Caller, verb: BulkVerb) -> None:
    make_type(kee)
    dead = number(queue(kee))
    fail_next(worker)
    given: dict[str, Any] = {
        "tenant_id": kee.tenant_id,
        "task_ids": [dead],
        "operator": "ann",
        "reason": "test",
    }
    with acting_as_system("test"):
        action = operating.act_on_many(verb=verb, **given)
    later(91 * DAY)
    assert operating.Walk().forget() == 1
    assert (operating.go_on(), operating.go_on()) == (1, 0)
    with acting_as_system("test"):
        action.refresh_from_db()
    assert (action.done, len(action.refusals), action.ended_at is None) == (0, 1, False)


def test_list_of_tasks_shows_and_filters_by_status(console: Client, kee: Caller, worker: Caller) -> None:
    make_type(kee)
    tasks = {}
    for found in ("succeeded", "failed", "canceling", "leased", "queued"):
        tasks[found] = number(queue(kee))
        if found == "succeeded":
            complete(worker, lease_one(worker))
        elif found == "failed":
            fail_next(worker)
        elif found != "queued":
            lease_one(worker)
    tasks["scheduled"] = number(queue(kee, run_at=FUTURE))
    tasks["waiting"] = number(queue(kee, depends_on=[f"task_{tasks['queued']}"]))
    cancel(kee, tasks["canceling"])

    def listed(**given: str) -> dict[str, int]:
        answer = console.get(reverse("admin:tasks_task_changelist"), given)
        return {str(row.standing.status): row.pk for row in answer.context["cl"].result_list}

    assert listed() == tasks
    assert all(listed(status=found) == {found: task} for found, task in tasks.items())
    assert set(listed(status="open")) == {"canceling", "leased", "queued", "scheduled", "waiting"}
    assert listed(q=f"task_{tasks['failed']}") == listed(q="it BROKE") == {"failed": tasks["failed"]}
    assert set(listed(ended="hour")) == {"succeeded", "failed"}
    assert listed(ended="day", status="canceled") == {}


def test_revoked_lease_costs_no_attempt(console: Client, kee: Caller, worker: Caller) -> None:
    make_type(kee)
    task = number(queue(kee))
    act(console, "task", "revoke_lease", task)
    assert "be done now with" in page(console, "task", task)
    grant = lease_one(worker)
    act(console, "task", "revoke_lease", task)
    with acting_as(kee):
        live = LiveTask.objects.get()
        assert (live.holder_id, live.failures, live.expiries, Run.objects.get().outcome) == (None, 0, 0, "revoked")
    with refused("lease_lost"):
        complete(worker, grant)
    again = lease_one(worker)
    assert again.run_id == 2
    cancel(kee, task)
    act(console, "task", "revoke_lease", task)
    assert status(kee, task) == "canceled"


@pytest.mark.parametrize("model", ["queue", "tasktype"])
def test_paused_queue_or_type_gives_out_nothing(console: Client, kee: Caller, worker: Caller, model: str) -> None:
    made = make_type(kee)
    queue(kee)
    pk = made.queue_id if model == "queue" else made.pk
    act(console, model, "pause", pk)
    assert lease(worker) == []
    act(console, model, "resume", pk)
    lease_one(worker)


def test_figures_are_those_of_the_newest_ends(kee: Caller, worker: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    make_type(kee)
    queue_many(kee, *[asked()] * 4)
    for _ in range(3):
        complete(worker, lease_one(worker))
    fail_next(worker)
    later(100)

    (found,) = figures(kee)
    assert (found.failure_rate, found.expiries, found.dead_letters) == (0.25, 0, 1)
    assert found.finished_per_minute == 4 / 5
    assert found.latency_p50_seconds is not None
    assert found.latency_p99_seconds is not None
    assert 0 < found.latency_p50_seconds <= found.latency_p99_seconds < 60
    monkeypatch.setattr(selectors, "ENDS_LOOKED_AT", 2)
    (found,) = figures(kee)
    assert found.failure_rate == 0.5
    assert 2 / 2 < found.finished_per_minute < 2 * 60 / 99
    later(301)
    (found,) = figures(kee)
    assert (found.finished_per_minute, found.latency_p50_seconds) == (0, None)


def test_expired_leases_are_counted_with_the_end(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    queue(kee)
    for _ in range(2):
        lease_one(worker)
        with acting_as(kee):
            LiveTask.objects.update(lease_expires_at=LONG_AGO)
    assert [found.expiries for found in figures(kee)] == [0]
    complete(worker, lease_one(worker))
    assert [found.expiries for found in figures(kee)] == [2]


def figures(caller: Caller) -> list[QueueFigures]:
    with acting_as(caller):
        return list(selectors.queue_figures(tenant_id=caller.tenant_id).values())


def test_each_minute_of_a_queue_is_kept_once(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    queue_many(kee, *[asked()] * 3)
    complete(worker, lease_one(worker))
    fail_next(worker)
    later(90)
    assert [operating.keep_history() > 0, operating.keep_history() > 0] == [True, False]
    later(150)
    with acting_as(kee):
        kept = selectors.history(step=timedelta(hours=2), steps=1)
        old = list(QueueHistory.objects.values_list("pk", flat=True))
    assert [(one.ended, one.failed, one.queued) for one in kept] == [(2, 1, {"default": 1})]
    later(31 * 86_400)
    operating.keep_history()
    with acting_as(kee):
        assert not QueueHistory.objects.filter(pk__in=old).exists()
