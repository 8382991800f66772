"""The client for asyncio: each verb of `Client` as a coroutine.

The calls run in threads of their own, so what many coroutines queue or complete at the same moment goes together in one
request, as it does for threads.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Concatenate, ParamSpec, Self, TypeVar

from gatehouse_client.client import Client

P = ParamSpec("P")
T = TypeVar("T")


def _awaited(
    verb: Callable[Concatenate[Client, P], T],
) -> Callable[Concatenate["AsyncClient", P], Awaitable[T]]:
    async def call(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        bound = partial(verb, self.client, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self.threads, bound)

    call.__name__, call.__doc__ = verb.__name__, verb.__doc__
    return call


class AsyncClient:
    """The API of a hub for one principal, from coroutines. A call that is cancelled may still have its effect."""

    def __init__(self, client: Client, *, at_once: int = 64) -> None:
        """:param at_once: how many calls are under way at a time. One that waits for the hub counts as well."""
        self.client = client
        self.threads = ThreadPoolExecutor(at_once, thread_name_prefix="gatehouse")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.threads.shutdown(wait=False)
        self.client.close()

    register_type = _awaited(Client.register_type)
    queue = _awaited(Client.queue)
    queue_many = _awaited(Client.queue_many)
    status = _awaited(Client.status)
    result = _awaited(Client.result)
    cancel = _awaited(Client.cancel)
    control = _awaited(Client.control)
    timeline = _awaited(Client.timeline)
    tasks = _awaited(Client.tasks)
    retry = _awaited(Client.retry)
    schedule = _awaited(Client.schedule)
    schedules = _awaited(Client.schedules)
    remove_schedule = _awaited(Client.remove_schedule)
    queues = _awaited(Client.queues)
    set_queue_limits = _awaited(Client.set_queue_limits)
    pause_queue = _awaited(Client.pause_queue)
    resume_queue = _awaited(Client.resume_queue)
    pause_type = _awaited(Client.pause_type)
    resume_type = _awaited(Client.resume_type)
    lease = _awaited(Client.lease)
    heartbeat = _awaited(Client.heartbeat)
    complete = _awaited(Client.complete)
    complete_many = _awaited(Client.complete_many)
    fail = _awaited(Client.fail)
    release = _awaited(Client.release)
    release_many = _awaited(Client.release_many)
    post = _awaited(Client.post)
    read = _awaited(Client.read)
    wait = _awaited(Client.wait)
    ack = _awaited(Client.ack)
    ack_entries = _awaited(Client.ack_entries)
    remember = _awaited(Client.remember)
    recall = _awaited(Client.recall)
    envelope = _awaited(Client.envelope)
