"""What operators do to tasks and queues in the console."""

from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse

from apps.principals.models import Membership, Operator, Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.tasks import selectors, services
from apps.tasks.errors import LeaseLost
from apps.tasks.models import LiveTask, Queue, Run, Task
from tests.console.test_actions import SENT
from tests.factories import make_caller
from tests.tasks.making import complete, lease_one, make_type, number, queue
from tests.tasks.test_dependencies import fail, status


@pytest.fixture
def console(db: None) -> Client:
    client = Client()
    root = Operator.objects.create_superuser(username="root", password="a long enough password")
    client.force_login(root, backend="django.contrib.auth.backends.ModelBackend")
    return client


@pytest.fixture
def worker(tenant: Tenant) -> Caller:
    return make_caller(tenant, "W", Kind.WORKER)


def act(console: Client, model: str, name: str, pk: int) -> Any:
    return console.post(reverse(f"admin:tasks_{model}_{name}", args=[pk]), SENT)


def page(console: Client, model: str, pk: int) -> str:
    return console.get(reverse(f"admin:tasks_{model}_change", args=[pk])).content.decode()


def test_an_operator_cancels_a_task_with_a_reason(console: Client, kee: Caller, worker: Caller) -> None:
    make_type(kee)
    waiting = number(queue(kee))
    act(console, "task", "cancel", waiting)
    assert status(kee, waiting) == "canceled"
    held = number(queue(kee))
    grant = lease_one(worker)
    act(console, "task", "cancel", held)
    assert status(kee, held) == "canceling"
    complete(worker, grant)
    act(console, "task", "cancel", held)
    assert "has succeeded already" in page(console, "task", held)
    assert [entry.change_message for entry in LogEntry.objects.order_by("pk")] == ["Cancel: ticket 7"] * 2


def test_a_revoked_lease_is_worth_nothing_and_costs_no_attempt(console: Client, kee: Caller, worker: Caller) -> None:
    make_type(kee)
    task = number(queue(kee))
    act(console, "task", "revoke_lease", task)
    assert "Nobody holds" in page(console, "task", task)
    grant = lease_one(worker)
    act(console, "task", "revoke_lease", task)
    with acting_as(kee):
        hot = LiveTask.objects.get()
        assert (hot.holder_id, hot.failures, hot.expiries, Run.objects.get().outcome) == (None, 0, 0, "revoked")
    with pytest.raises(LeaseLost):
        complete(worker, grant)
    again = lease_one(worker)
    assert again.fence == 2
    with acting_as(kee):
        services.cancel(caller=kee, task_id=task)
    act(console, "task", "revoke_lease", task)
    assert status(kee, task) == "canceled"


def test_dead_letters_are_replayed_one_by_one_or_by_the_queue(console: Client, kee: Caller, worker: Caller) -> None:
    make_type(kee)
    dead = []
    for _ in range(3):
        queue(kee)
        dead.append(fail(worker))
    for _ in range(2):
        act(console, "task", "replay", dead[0])
    with acting_as(kee):
        (made,) = Task.objects.filter(replay_of=dead[0])
        line = Queue.objects.get()
    shown = page(console, "task", dead[0])
    assert f"was replayed as task_{made.pk} before" in shown
    act(console, "queue", "replay_dead_letters", line.pk)
    assert "2 dead letters of default are queued again." in page(console, "queue", line.pk)
    with acting_as(kee):
        assert Task.objects.filter(replay_of__isnull=False).count() == 3


def test_a_paused_queue_gives_out_nothing_until_it_is_resumed(console: Client, kee: Caller, worker: Caller) -> None:
    make_type(kee)
    queue(kee)
    with acting_as(kee):
        line = Queue.objects.get()
    act(console, "queue", "pause", line.pk)
    with acting_as(worker):
        assert services.lease(worker=worker, queues=["default"]) == []
    act(console, "queue", "resume", line.pk)
    lease_one(worker)


def test_a_paused_type_is_given_to_nobody_until_it_is_resumed(console: Client, kee: Caller, worker: Caller) -> None:
    made = make_type(kee)
    queue(kee)
    act(console, "tasktype", "pause", made.pk)
    with acting_as(worker):
        assert services.lease(worker=worker, queues=["default"]) == []
    act(console, "tasktype", "resume", made.pk)
    lease_one(worker)


def test_an_operator_of_another_tenant_can_act_on_nothing_here(tenant: Tenant, kee: Caller, worker: Caller) -> None:
    make_type(kee)
    task = number(queue(kee))
    olga = Operator.objects.create_user(username="olga", password="x", is_staff=True)
    client = Client()
    client.force_login(olga, backend="django.contrib.auth.backends.ModelBackend")
    assert act(client, "task", "cancel", task).status_code in {403, 404}
    with acting_as_system("test"):
        Membership.objects.create(operator=olga, tenant=tenant, role="operator")
    assert act(client, "task", "cancel", task).status_code == 403
    with acting_as(kee):
        assert selectors.status(f"task_{task}").status == "queued"


def test_a_schedule_is_stopped_and_resumed(console: Client, kee: Caller) -> None:
    make_type(kee)
    with acting_as(kee):
        made, _ = services.set_schedule(
            caller=kee, draft=services.ScheduleDraft(name="s", task_type="index", every_seconds=60)
        )
    act(console, "schedule", "stop", made.pk)
    with acting_as(kee):
        made.refresh_from_db()
        assert made.next_at is None
    act(console, "schedule", "resume", made.pk)
    with acting_as(kee):
        made.refresh_from_db()
        assert made.next_at is not None
