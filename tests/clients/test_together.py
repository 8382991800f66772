"""Calls of several threads share requests, and each is answered as if it had been alone."""

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from apps.principals.tenancy import Caller, acting_as
from apps.tasks.models import Task as TaskRow
from gatehouse_client import AsyncClient, Client, LeaseLost
from gatehouse_client.outputs import QueuedTask
from gatehouse_client.together import Item, Together, take
from gatehouse_client.verbs import Verbs
from tests.clients.proxy import Proxy
from tests.clients.test_worker import PATIENCE
from tests.server import Server, end_server, start_server
from tests.waiters import at_once, until

THREADS = 16


def queue_some(client: Client, calls: int = THREADS) -> list[Any]:
    """Every fifth is refused."""

    def queue(number: int) -> QueuedTask:
        params = {"number": number} if number % 5 else {}
        return client.queue(task_type="greeting", params=params, idempotency_key=f"{number}")

    return at_once(*(partial(queue, number) for number in range(calls)))


@pytest.fixture
def type_with_schema(client: Client) -> None:
    client.register_type(name="greeting", params_schema={"type": "object", "required": ["number"]})


def check(kee: Caller, answers: Sequence[Any]) -> None:
    """Whether each call has its own answer, and each accepted task is there once."""
    codes = [getattr(one, "code", None) for one in answers]
    assert codes == [None if number % 5 else "invalid_params" for number in range(len(answers))]
    with acting_as(kee):
        queued = {f"task_{pk}": params for pk, params in TaskRow.objects.values_list("pk", "params")}
    assert queued == {one.task_id: {"number": nth} for nth, one in enumerate(answers) if nth % 5}


def queue_from_coroutines(client: Client) -> list[Any]:
    async def all_at_once() -> list[Any]:
        ours = AsyncClient(client)
        numbers = [{"number": number} if number % 5 else {} for number in range(THREADS)]
        calls = [ours.queue(task_type="greeting", params=params) for params in numbers]
        return await asyncio.gather(*calls, return_exceptions=True)

    return asyncio.run(all_at_once())


@pytest.mark.usefixtures("type_with_schema")
@pytest.mark.parametrize("ask", [queue_some, queue_from_coroutines])
def test_refused_task_is_refused_alone(client: Client, kee: Caller, ask: Callable[[Client], list[Any]]) -> None:
    answers = ask(client)
    check(kee, answers)
    assert answers[0].errors
    assert len({id(one) for one in answers}) == THREADS


@pytest.mark.usefixtures("type_with_schema")
def test_lost_answers_to_many_double_nothing(shaky: Client, proxy: Proxy, kee: Caller) -> None:
    for _ in range(2):
        proxy.drop_reply_to("/api/v1/tasks/batch")
    check(kee, queue_some(shaky))
    assert proxy.dropped > 0


@pytest.mark.ci
@pytest.mark.usefixtures("type_with_schema")
def test_calls_go_on_after_a_restart(shaky: Client, proxy: Proxy, kee: Caller, server: Server) -> None:
    first, rest = queue_some(shaky), list[Any]()
    calling = threading.Thread(target=lambda: rest.extend(queue_some(shaky, 48)))
    proxy.cut()
    calling.start()
    until(lambda: proxy.turned_away > 0)
    process, url = start_server()
    try:
        proxy.target = ("127.0.0.1", int(url.rpartition(":")[2]))
        proxy.heal()
        calling.join(PATIENCE)
        check(kee, rest)
    finally:
        end_server(process)
    assert [one.task_id for one in rest[1:5]] == [one.task_id for one in first[1:5]]


@pytest.mark.usefixtures("type_with_schema")
def test_closing_breaks_no_call_off(client: Client, kee: Caller) -> None:
    calling = threading.Timer(0.01, client.close)
    calling.start()
    check(kee, queue_some(client))
    calling.join()


def test_completions_share_requests(client: Client, shaky: Client, proxy: Proxy) -> None:
    client.register_type(name="greeting")
    client.queue_many([{"task_type": "greeting", "params": {"number": number}} for number in range(10)])
    leases = client.lease(task_types=["greeting"], capacity=10)
    client.release(leases[3])
    proxy.drop_reply_to("/api/v1/tasks/complete")

    answers = at_once(*(partial(shaky.complete, lease, lease.params) for lease in leases))

    assert isinstance(answers[3], LeaseLost)
    for lease, answer in zip(leases, answers, strict=True):
        if lease is not leases[3]:
            assert (answer.task_id, client.result(lease.task_id).content) == (lease.task_id, lease.params)


def counted_in(sent: list[int]) -> Callable[[Sequence[Item]], list[bytes]]:
    """A hub that answers with what it is asked, and notes how many asked together."""

    def together(items: Sequence[Item]) -> list[bytes]:
        sent.append(len(items))
        return [one.content for one in items]

    return together


def test_interrupted_caller_takes_nobody_along() -> None:
    may_answer, sent = threading.Event(), list[int]()

    def alone(item: Item) -> bytes:
        assert may_answer.wait(PATIENCE)
        return item.content

    calls = Together[bytes](alone, counted_in(sent), 3)
    with ThreadPoolExecutor(8) as pool:
        first = [pool.submit(calls.ask, Item(content=b"%d" % number)) for number in range(2)]
        time.sleep(0.1)
        before = signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(InterruptedError))
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            with pytest.raises(InterruptedError):
                calls.ask(Item(content=b"x"))
        finally:
            signal.signal(signal.SIGALRM, before)
        others = [pool.submit(calls.ask, Item(content=b"%d" % number)) for number in range(2, 8)]
        time.sleep(0.1)
        may_answer.set()
        assert [one.result(PATIENCE) for one in [*first, *others]] == [b"%d" % number for number in range(8)]
    assert max(sent) == 3


def test_request_that_hangs_delays_no_later_call() -> None:
    may_answer, sent = threading.Event(), list[int]()

    def alone(item: Item) -> bytes:
        assert item.content != b"slow" or may_answer.wait(PATIENCE)
        return item.content

    calls = Together[bytes](alone, counted_in(sent), 4)
    with ThreadPoolExecutor(5) as pool:
        slow = pool.submit(calls.ask, Item(content=b"slow"))
        until(lambda: calls._is_led)
        quick = [pool.submit(calls.ask, Item(content=b"%d" % number)) for number in range(4)]
        assert [one.result(PATIENCE) for one in quick] == [b"%d" % number for number in range(4)]
        assert max(sent) > 1
        assert not slow.done()
        may_answer.set()
        assert slow.result(PATIENCE) == b"slow"


def test_limits_of_one_request() -> None:
    sizes = [1, 1, 5_000_000, 1]
    items = [Item(content=b"x" * size) for size in sizes]
    assert [take(items, 3), take(items, 1), take(items[2:], 3)] == [2, 1, 1]


def test_coroutines_have_every_verb() -> None:
    verbs = {name for name in vars(Verbs) if not name.startswith("_") and not name.endswith(("_item", "_items"))}
    assert verbs <= vars(AsyncClient).keys()
