"""What the cases of the suite do with tasks, through the product's services: each verb a transaction of its own."""

from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from typing import Final

from django.utils import timezone

from apps.bench.load import Operation, Work
from apps.bench.world import AGENTS
from apps.core.errors import DomainError
from apps.principals.tenancy import Caller
from apps.tasks import services
from apps.tasks.models import HotTask
from apps.tasks.services import Completion, Delivery, QueueRequest, TypeDraft

LINE: Final = "echo"
"""A type of tasks and its queue."""
WAKING: Final = "wake"
ABANDONED: Final = 8
"""How many lines there are for tasks whose worker dies."""
_AT_ONCE: Final = 500
_WARM_UPS: Final = 3


def line(number: int) -> str:
    """A client's own type and queue: what it queues, it leases."""
    return f"{LINE}_{number}"


def stock(number: int) -> str:
    """A client's own type and queue of tasks that have been queued before."""
    return f"stock_{number}"


def stock_of_one(number: int) -> str:
    """As :func:`stock`, of which one and the same recipient is told."""
    return f"stock_of_one_{number}"


def abandoned(number: int) -> str:
    """A type and queue of which a worker dies."""
    return f"abandoned_{number}"


def make_lines(owner: Caller, clients: int) -> None:
    """All types and queues of the suite, and the inboxes of those who are told."""
    own = [name(number) for number in range(clients) for name in (line, stock)] + [stock_of_one(0)]
    for name in (LINE, WAKING, *own, *map(abandoned, range(ABANDONED))):
        with owner.acting():
            services.register_type(caller=owner, draft=TypeDraft(name=name, queue=name), now=timezone.now())
    # What comes to an agent first makes its inbox.
    queue_up(owner, LINE, AGENTS)
    _lease_and_complete(owner, LINE, AGENTS)


def queue_up(owner: Caller, name: str, tasks: int, recipients: int = AGENTS) -> None:
    """Queue so many in this line, or as many as are missing there, of which so many agents are told in turn."""
    with owner.acting():
        missing = tasks - HotTask.objects.filter(queue__name=name).count()
    for start in range(0, missing, _AT_ONCE):
        requests = [
            QueueRequest(task_type=name, params={"n": 1}, recipient=recipient(nth % recipients))
            for nth in range(start, min(start + _AT_ONCE, missing))
        ]
        with owner.acting():
            services.queue_many(requester=owner, requests=requests)


def recipient(nth: int) -> str:
    """The name of an agent that is told of ends: any number will do."""
    return f"agent-{nth % AGENTS}"


def whole_cycles(owner: Caller, *, batch: int) -> Work:
    """Queue tasks, of whose ends all agents are told in turn, lease them, complete them."""

    def work(number: int) -> Operation:
        name = line(number)
        turns: Iterator[int] = count(number * batch)

        def cycle() -> int:
            requests = [
                QueueRequest(task_type=name, params={"n": 1}, recipient=recipient(nth)) for nth in islice(turns, batch)
            ]
            with owner.acting():
                services.queue_many(requester=owner, requests=requests)
            return _lease_and_complete(owner, name, batch)

        return cycle

    return work


def lease_cycles(owner: Caller, *, batch: int, of: Callable[[int], str] = stock) -> Work:
    """Lease and complete what a stock holds; warm from the first."""

    def work(number: int) -> Operation:
        name = of(number)

        def cycle() -> int:
            return _lease_and_complete(owner, name, batch)

        for _ in range(_WARM_UPS):
            cycle()
        return cycle

    return work


def stocked(cycles: int, *, batch: int) -> int:
    """How many tasks so many cycles need, those in which they get warm included."""
    return (cycles + _WARM_UPS) * batch


def _lease_and_complete(worker: Caller, name: str, batch: int) -> int:
    with worker.acting():
        grants = services.lease(worker=worker, queues=[name], capacity=batch)
    complete(worker, [(grant.task_id, grant.lease_token) for grant in grants])
    return len(grants)


def complete(worker: Caller, held: Sequence[tuple[int, str]]) -> None:
    """Complete these, by task and token.

    :raises DomainError: if one is refused: what was not done must not count.
    """
    completions = [Completion(task_id=task_id, lease_token=token, delivery=Delivery()) for task_id, token in held]
    with worker.acting():
        answers = services.complete_many(worker=worker, completions=completions).answers
    for answer in answers:
        if isinstance(answer, DomainError):
            raise answer
