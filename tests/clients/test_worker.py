"""The loop against a running hub: leases live as long as the work, orders arrive, nothing acknowledged is lost."""

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date, datetime
from threading import Event
from typing import Any, Literal

import pytest

import gatehouse_client as gatehouse
from apps.principals.tenancy import Caller, acting_as
from apps.receipts.models import Receipt
from apps.tasks.models import LiveTask
from gatehouse_client import Client, Task, Worker
from gatehouse_client.functions import as_type
from gatehouse_client.outputs import (
    BudgetLeft,
    CompletedTasks,
    HeartbeatAnswer,
    LeasedTask,
    Progress,
    QueuedTask,
    Spent,
)
from gatehouse_client.together import Item
from tests import remote as remotes
from tests.clients.conftest import running
from tests.clients.proxy import Proxy
from tests.remote import says
from tests.tasks.making import number
from tests.waiters import until

PATIENCE = 45.0


def make_worker(client: Client, handler: Callable[[Task], Any], **more: Any) -> Worker:
    # Idle workers end as soon as their request for work is answered.
    worker = Worker(client, **{"wait_seconds": 0.2} | more)
    worker.handles("greeting")(handler)
    return worker


def make_lease(number: int = 1, lease_ms: int = 60_000) -> LeasedTask:
    about: Any = {"task_type": "greeting", "params": {}, "checkpoint": None}
    return LeasedTask(task_id=f"task_{number}", run_id=1, lease_token=f"lt{number}", lease_ms=lease_ms, **about)


def has_ended(client: Client, task: QueuedTask) -> Callable[[], bool]:
    return lambda: client.status(task.task_id).complete


def ends(kee: Caller, task: QueuedTask) -> list[str]:
    """The receipts that say how a task has ended."""
    with acting_as(kee):
        posted = Receipt.objects.filter(dedupe_key__contains=f":{task.task_id}:run_")
        return list(posted.values_list("event_type", flat=True))


def end_of_lease(kee: Caller, task: QueuedTask) -> datetime:
    with acting_as(kee):
        end = LiveTask.objects.get(pk=number(task.task_id)).lease_expires_at
    assert end is not None
    return end


def is_put_off(kee: Caller, task: QueuedTask) -> Callable[[], bool]:
    """Whether the lease ends later than it was to end when this was asked first."""
    before = end_of_lease(kee, task)
    return lambda: end_of_lease(kee, task) > before


def test_return_value_of_a_handler_is_the_result(client: Client) -> None:
    client.register_type(name="greeting")
    tasks = [client.queue(task_type="greeting", params={"name": name}) for name in ("Ada", "Bob", "Cyd")]

    def greet(task: Task) -> Any:
        said = f"Hello {task.params['name']}"
        return gatehouse.Result(content=said, summary="Greeted Bob") if task.params["name"] == "Bob" else said

    with running(make_worker(client, greet)):
        for task in tasks:
            until(has_ended(client, task))

    assert [client.result(task.task_id).content for task in tasks] == ["Hello Ada", "Hello Bob", "Hello Cyd"]
    assert client.result(tasks[1].task_id).summary == "Greeted Bob"


def count(
    task: Task, path: str, *, width: int = 100, ratio: float | None = None, names: list[str], mode: Literal["a", "b"]
) -> None:
    """Counts what there is."""


def test_function_declares_its_task_type() -> None:
    declared: Any = as_type(count, lease_seconds=15)

    assert declared.pop("params_schema") == {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "width": {"type": "integer", "default": 100},
            "ratio": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None},
            "names": {"type": "array", "items": {"type": "string"}},
            "mode": {"enum": ["a", "b"]},
        },
        "required": ["path", "names", "mode"],
        "additionalProperties": False,
    }
    assert declared == {"name": "count", "title": "Counts what there is.", "lease_seconds": 15}
    with pytest.raises(TypeError, match="names of <lambda>"):
        as_type(lambda *names: names)

    def when(day: date) -> None: ...

    with pytest.raises(TypeError, match="No JSON is"):
        as_type(when)


def test_functions_are_task_types_and_run_once_at_most_where_told(client: Client) -> None:
    worker = Worker(client, wait_seconds=0)

    @worker.task
    def greet(name: str, task: Task) -> str:
        return f"Hello {name}, {task.task_id}"

    @worker.task(name="later", max_attempts=5)
    async def greet_later(name: str) -> str:
        return f"Hello {name}"

    assert worker.run(at_most=1) == 0
    tasks = [client.queue(task_type=name, params={"name": "Ada"}) for name in ("greet", "later")]
    assert [worker.run(at_most=1) for _ in range(3)] == [1, 1, 0]
    assert [client.result(task.task_id).content for task in tasks] == [f"Hello Ada, {tasks[0].task_id}", "Hello Ada"]


def _refuse(task: Task) -> None:
    raise gatehouse.Failed("no_voice", "I have lost my voice.", retryable=False)


def _break(task: Task) -> None:
    raise RuntimeError("the password is secret")


def _leave(task: Task) -> None:
    raise SystemExit


def _save_too_much(task: Task) -> None:
    task.save({"all": "x" * 1_000_000})


def _limited(task: Task) -> None:
    # As `client.queue(…)` in a handler, where the hub says 429 for longer than its client has patience.
    raise gatehouse.RateLimited(429, {"code": "rate_limited", "detail": "Too many."})


def _say_nothing(task: Task) -> None:
    late = TimeoutError()
    raise gatehouse.Failed("timeout", str(late), retryable=True) from late


def _say_too_much(task: Task) -> None:
    raise gatehouse.Failed("c" * 101, "a\x00b" + "x" * 5000, retryable=True)


def _say_what_is_no_json(task: Task) -> None:
    raise gatehouse.Failed("timeout", "It took too long.", retryable=True, details={"a set": {1}})


@pytest.mark.parametrize(
    ("handler", "runs", "error"),
    [
        (_refuse, 1, {"code": "no_voice", "message": "I have lost my voice."}),
        (_break, 2, {"code": "handler_error", "message": "RuntimeError in greeting."}),
        (_leave, 2, {"code": "handler_error"}),
        (_save_too_much, 2, {"code": "body_too_large"}),
        (lambda task: {"a set": {1}}, 1, {"code": "unsendable_result"}),
        (lambda task: gatehouse.Result(pointer="no pointer"), 1, {"code": "invalid_pointer"}),
        (_limited, 2, {"code": "rate_limited", "message": "Too many."}),
        (_say_nothing, 2, {"code": "timeout", "message": "TimeoutError."}),
        (_say_too_much, 2, {"code": "c" * 100, "message": "a\N{REPLACEMENT CHARACTER}b" + "x" * 3997}),
        (_say_what_is_no_json, 2, {"code": "unsendable_result"}),
    ],
    ids=lambda one: one.__name__ if callable(one) else None,
)
def test_every_end_of_a_handler_is_reported(
    client: Client, kee: Caller, handler: Callable[[Task], Any], runs: int, error: dict[str, str]
) -> None:
    client.register_type(name="greeting", max_attempts=2, backoff={"base_seconds": 0, "cap_seconds": 0})
    task = client.queue(task_type="greeting")
    with running(make_worker(client, handler)):
        until(has_ended(client, task))

    status = client.status(task.task_id)
    assert (status.status, status.run_id) == ("failed", runs)
    assert error.items() <= (status.error or {}).items()
    assert ends(kee, task)[-1] == "task_failed"


def test_capacity_may_exceed_one_lease_request(client: Client) -> None:
    client.register_type(name="greeting")
    client.queue_many([{"task_type": "greeting"}] * 101)
    begun: list[str] = []

    def work(task: Task) -> None:
        begun.append(task.task_id)
        task.wait(PATIENCE)

    with running(make_worker(client, work, capacity=128, grace=0.0)):
        until(lambda: len(begun) == 101)

    assert len(set(begun)) == 101


def test_capacity_limits_running_tasks(client: Client) -> None:
    client.register_type(name="greeting")
    tasks = [client.queue(task_type="greeting") for _ in range(5)]
    at_once: list[int] = []
    going: set[str] = set()

    def work(task: Task) -> None:
        going.add(task.task_id)
        at_once.append(len(going))
        task.wait(0.05)
        going.discard(task.task_id)

    with running(make_worker(client, work, capacity=2)):
        for task in tasks:
            until(has_ended(client, task))

    assert max(at_once) <= 2
    assert len(at_once) == 5


def test_short_tasks_are_leased_ahead_and_end_in_groups(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.register_type(name="greeting")
    client.queue_many([{"task_type": "greeting", "params": {"number": number}} for number in range(400)])
    complete, groups = Client.complete_items, list[int]()

    def counted(client: Client, items: Sequence[Item], **more: Any) -> CompletedTasks:
        groups.append(len(items))
        return complete(client, items, **more)

    monkeypatch.setattr(Client, "complete_items", counted)
    with running(make_worker(client, lambda task: task.params["number"], capacity=1)):
        until(lambda: client.queues()[0].queued == client.queues()[0].leased == 0)

    assert sum(groups) == 400
    assert max(groups) > 10


def test_what_no_thread_begins_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gatehouse_client.worker._LONGEST_WAIT", 0.1)
    may_end = Event()
    leases = [make_lease(number, 600_000) for number in range(3)]
    with remotes.serving() as hub, Client(hub.url, "ght_a", patience=PATIENCE) as client:
        hub.script = [says(200, {"tasks": [vars(lease) for lease in leases]})]
        hub.always = says(503, {"detail": "Away."})
        with running(make_worker(client, lambda task: may_end.wait(PATIENCE) and None, capacity=1, grace=0.1)):
            until(lambda: any(one.path.endswith("/release") for one in hub.received))
            hub.always = says(409, {"code": "lease_lost"})
            may_end.set()

    given_back = next(one.json["releases"] for one in hub.received if one.path.endswith("/tasks/release"))
    assert [one["task_id"] for one in given_back] == ["task_1", "task_2"]


def test_heartbeats_renew_leases_and_carry_progress_and_spend(
    client: Client, kee: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gatehouse_client.task._BEATS_PER_LEASE", 80)
    client.register_type(name="greeting", lease_seconds=20)
    task = client.queue(task_type="greeting")
    begun, may_end = Event(), Event()

    def work(task: Task) -> str:
        task.progress(40, "so far")
        task.spend(tokens=7)
        begun.set()
        while not may_end.is_set():
            task.wait(0.02)
        return "done"

    with running(make_worker(client, work)):
        assert begun.wait(PATIENCE)
        for _ in range(2):
            until(is_put_off(kee, task))
        assert client.lease(task_types=["greeting"]) == []
        until(lambda: client.status(task.task_id).progress == Progress(percent=40, message="so far"))
        may_end.set()
        until(has_ended(client, task))

    status = client.status(task.task_id)
    assert (status.status, status.run_id, status.expiries) == ("succeeded", 1, 0)


def test_spend_is_reported_before_the_end_once(client: Client, kee: Caller) -> None:
    client.register_type(name="greeting")

    def work(task: Task) -> None:
        task.spend(tokens=7, cost_usd=0.25)
        if task.params.get("saves"):
            task.save({"at": 1})
        task.spend(tokens=3)
        with pytest.raises(ValueError, match="used"):
            task.spend(tokens=-1)

    tasks = [client.queue(task_type="greeting", params={"saves": saves}) for saves in (False, True)]
    with running(make_worker(client, work)):
        for task in tasks:
            until(has_ended(client, task))

    assert [client.status(task.task_id).spent for task in tasks] == [Spent(tokens=10, cost_usd=0.25)] * 2


def test_spent_budget_stops_the_run(client: Client, kee: Caller) -> None:
    client.register_type(name="greeting")
    queued = client.queue(task_type="greeting", budget={"tokens": 10})
    left: list[Any] = []

    def work(task: Task) -> None:
        task.spend(tokens=4)
        task.save({"at": 1})
        left.append(task.budget_left)
        task.spend(tokens=6)
        task.save({"at": 2})
        left.append("goes on")

    with running(make_worker(client, work)):
        until(has_ended(client, queued))

    assert left == [BudgetLeft(tokens=6, cost_usd=None)]
    status = client.status(queued.task_id)
    assert (status.status, status.reason) == ("failed", "budget_exhausted")
    assert status.budget is not None
    assert status.budget.spent.tokens == 10


def test_refused_heartbeat_content_ends_no_lease(client: Client, kee: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gatehouse_client.task._BEATS_PER_LEASE", 80)
    client.register_type(name="greeting", lease_seconds=20)
    talker, other = (client.queue(task_type="greeting", params={"talks": talks}) for talks in (True, False))
    begun: list[str] = []
    may_end = Event()

    def work(task: Task) -> None:
        if task.params["talks"]:
            task.progress(10, "NUL is no text: \x00")
        begun.append(task.task_id)
        while not may_end.is_set():
            task.wait(0.02)

    with running(make_worker(client, work)):
        until(lambda: len(begun) == 2)
        for task in (talker, other):
            until(is_put_off(kee, task))
        assert client.lease(task_types=["greeting"]) == []
        may_end.set()
        for task in (talker, other):
            until(has_ended(client, task))

    assert {client.status(task.task_id).run_id for task in (talker, other)} == {1}


def test_cancel_order_reaches_the_handler(client: Client, kee: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gatehouse_client.task._BEATS_PER_LEASE", 80)
    client.register_type(name="greeting", lease_seconds=20)
    task = client.queue(task_type="greeting")
    begun = Event()
    stopped: list[str] = []

    def work(task: Task) -> None:
        begun.set()
        try:
            task.wait(PATIENCE)
        except gatehouse.Stop as stop:
            stopped.append(stop.why)
            raise

    with running(make_worker(client, work)):
        assert begun.wait(PATIENCE)
        assert client.cancel(task.task_id) == "canceling"
        until(has_ended(client, task))

    assert stopped == ["canceled"]
    assert client.status(task.task_id).status == "canceled"
    assert ends(kee, task) == ["task_canceled"]


def test_lost_lease_stops_the_handler(client: Client, shaky: Client, proxy: Proxy, kee: Caller) -> None:
    client.register_type(name="greeting", lease_seconds=1)
    task = client.queue(task_type="greeting")
    begun = Event()
    stopped: list[str] = []

    def work(task: Task) -> str:
        begun.set()
        try:
            task.wait(PATIENCE)
        except gatehouse.Stop as stop:
            stopped.append(stop.why)
        return "too late"

    with running(make_worker(shaky, work)):
        assert begun.wait(PATIENCE)
        proxy.cut()
        rival: list[LeasedTask] = []

        def rival_has_it() -> bool:
            rival.extend(client.lease(task_types=["greeting"], lease_seconds=30))
            return bool(rival)

        until(rival_has_it)
        proxy.heal()
        until(lambda: bool(stopped))
        client.complete(rival[0], "in time")

    assert stopped == ["lost"]
    assert rival[0].run_id == 2
    assert client.result(task.task_id).content == "in time"
    assert ends(kee, task) == ["task_complete"]


def test_result_is_reported_when_the_hub_is_back(client: Client, shaky: Client, proxy: Proxy, kee: Caller) -> None:
    client.register_type(name="greeting", lease_seconds=30)
    task = client.queue(task_type="greeting")
    begun, may_end = Event(), Event()

    def work(task: Task) -> str:
        begun.set()
        may_end.wait(PATIENCE)
        return "Hello"

    with running(make_worker(shaky.within(patience=0.1), work)):
        assert begun.wait(PATIENCE)
        proxy.cut()
        may_end.set()
        until(lambda: proxy.turned_away > 0)
        proxy.heal()
        proxy.drop_reply_to("/tasks/complete")
        until(lambda: proxy.dropped == 1)

    assert client.result(task.task_id).content == "Hello"
    assert ends(kee, task) == ["task_complete"]


_ANSWER = HeartbeatAnswer(
    task_id="task_1", status="ok", order="continue", lease_ms=60_000, reason=None, stuck=False, budget_left=None
)


def test_checkpoint_is_sent_until_it_is_saved() -> None:
    def answers(status: str, order: str) -> remotes.Behaviour:
        return says(200, {"results": [{**vars(_ANSWER), "status": status, "order": order}]})

    lease = make_lease()
    with remotes.serving() as hub, Client(hub.url, "ght_a") as client:
        task = Task(lease, client, is_ending=lambda: False)
        hub.script = [answers("ok", "checkpoint")]
        beat = task.next_beat()
        (answer,) = client.heartbeat([beat])
        task.handle(answer, beat)
        assert task.checkpoint_wanted

        hub.script = [answers("retry", "continue"), answers("ok", "drain")]
        task.progress(30)
        task.save({"line": 40})

        assert (task.checkpoint, task.checkpoint_wanted, task.draining) == ({"line": 40}, False, True)
        sent = [one.json["leases"][0] for one in hub.received[1:]]
        assert [(one["checkpoint"], one["progress"]["percent"]) for one in sent] == [({"line": 40}, 30)] * 2
        assert [one.json["leases"][0]["sequence"] for one in hub.received] == [1, 2, 3]

        hub.script = [answers("lost", "cancel")]
        with pytest.raises(gatehouse.Stop):
            task.save({"line": 80})
        assert task.checkpoint == {"line": 40}


def test_heartbeat_interval_has_a_minimum() -> None:
    lease = make_lease()
    with Client("http://127.0.0.1:9", "ght_a") as client:
        task = Task(lease, client, is_ending=lambda: False)
        for left, reason, interval in ((40_000, None, 10.0), (4, "budget_exhausted", 10.0), (0, None, 0.25)):
            before = time.monotonic()
            answer = replace(_ANSWER, order="cancel", lease_ms=left, reason=reason)
            task.handle(answer, task.next_beat())
            assert task.due_at - before >= interval


def test_worker_ends_in_time_without_its_hub() -> None:
    begun: list[str] = []
    may_end = Event()

    def work(task: Task) -> None:
        task.spend(tokens=5)
        begun.append(task.task_id)
        may_end.wait(PATIENCE)

    with remotes.serving() as hub, Client(hub.url, "ght_a", patience=PATIENCE) as client:
        hub.script = [says(200, {"tasks": [vars(make_lease(number, 600_000)) for number in range(3)]})]
        with running(make_worker(client, work, capacity=3, grace=0.1)):
            until(lambda: len(begun) == 3)
            hub.always = says(503, {"detail": "Away."})
        until(lambda: any(one.path.endswith("/release") for one in hub.received))
        asked = [one for one in hub.received if not one.path.endswith("/lease")]
        hub.always = says(409, {"code": "lease_lost"})
        may_end.set()
        for thread in threading.enumerate():
            if thread.name in begun:
                thread.join(PATIENCE)

    assert {len(one.json.get("leases") or one.json["releases"]) for one in asked} == {3}
    assert {one.path for one in asked} == {"/api/v1/tasks/heartbeat", "/api/v1/tasks/release"}


@pytest.mark.ci
def test_stopped_worker_finishes_or_releases(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gatehouse_client.worker._LAST_WORDS", 10.0)
    client.register_type(name="greeting", lease_seconds=60)
    quick, slow, deaf = (
        client.queue(task_type="greeting", params={"name": name}) for name in ("quick", "slow", "deaf")
    )
    later: list[QueuedTask] = []
    begun: set[str] = set()
    may_end = Event()

    def work(task: Task) -> str:
        begun.add(task.params["name"])
        if task.params["name"] == "deaf":
            may_end.wait(PATIENCE)
        elif task.params["name"] == "slow":
            task.wait(PATIENCE)
        else:
            until(lambda: task.draining)
            later.append(client.queue(task_type="greeting", params={"name": "later"}))
        return "done"

    with running(make_worker(client, work, grace=3.0)):
        until(lambda: begun == {"quick", "slow", "deaf"})

    may_end.set()
    found = {task.task_id: client.status(task.task_id) for task in (quick, slow, deaf, *later)}
    # What a request that waited still got is given back too.
    assert {task: one.status for task, one in found.items()} == {
        quick.task_id: "succeeded",
        slow.task_id: "queued",
        deaf.task_id: "queued",
        later[0].task_id: "queued",
    }
    assert {one.failures + one.expiries for one in found.values()} == {0}


@pytest.mark.ci
def test_tasks_end_once_with_lost_replies(client: Client, shaky: Client, proxy: Proxy, kee: Caller) -> None:
    client.register_type(name="greeting", lease_seconds=2, max_expiries=100)
    chance = random.Random(7)  # noqa: S311  # a fault, no secret
    proxy.loses = lambda: chance.random() < 0.2

    def work(task: Task) -> int:
        task.save({"number": task.params["number"]})
        return int(task.params["number"]) ** 2

    with running(make_worker(shaky, work)), running(make_worker(shaky, work)):
        tasks = [shaky.queue(task_type="greeting", params={"number": number}) for number in range(40)]
        for task in tasks:
            until(has_ended(client, task))
        proxy.loses = lambda: False

    assert proxy.dropped > 10
    assert len({task.task_id for task in tasks}) == 40
    assert [client.result(task.task_id).content for task in tasks] == [number**2 for number in range(40)]
    assert {tuple(ends(kee, task)) for task in tasks} == {("task_complete",)}


def test_missing_scope_is_raised_at_once(client: Client) -> None:
    with pytest.raises(gatehouse.Refused):
        Worker(client).run()
