"""What a token may be used for, and which kinds of principal may hold it."""

from typing import Final

from django.db.models import TextChoices


class Scope(TextChoices):
    RECEIPTS_WRITE = "receipts:write"
    INBOX = "inbox"
    TASKS_QUEUE = "tasks:queue"
    TASKS_WORK = "tasks:work"
    WORKERS_REGISTER = "workers:register"
    PLANS = "plans"
    MEMORY = "memory"
    ADMIN = "admin"


class Kind(TextChoices):
    AI = "ai"
    SERVICE = "service"
    WORKER = "worker"
    DELEGATE = "delegate"


# What can create work for others is a DeleGate, never a worker.
CREATES_WORK: Final = frozenset({Scope.TASKS_QUEUE, Scope.PLANS})
FORBIDDEN: Final[dict[Kind, frozenset[Scope]]] = {
    Kind.AI: frozenset(),
    Kind.SERVICE: frozenset(),
    Kind.WORKER: CREATES_WORK,
    Kind.DELEGATE: frozenset(),
}


def forbidden_to(kind: Kind, scopes: frozenset[Scope]) -> frozenset[Scope]:
    """The scopes among these that a principal of this kind can't hold."""
    return scopes & FORBIDDEN[kind]
