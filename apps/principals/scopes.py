"""What a token may be used for, and which kinds of principal may hold it."""

from typing import Final

from django.db.models import TextChoices


class Scope(TextChoices):
    """Each with what it lets its holder do, in the words of the consent page."""

    RECEIPTS_WRITE = "receipts:write", "Post receipts to inboxes"
    INBOX = "inbox", "Read its inbox and acknowledge what it has read"
    TASKS_QUEUE = "tasks:queue", "Queue tasks for workers, follow and cancel them"
    TASKS_WORK = "tasks:work", "Take tasks from queues and report their results"
    TASKS_MANAGE = "tasks:manage", "Pause queues and task types, and limit queues"
    WORKERS_REGISTER = "workers:register", "Register workers and the tools that they offer"
    PLANS = "plans", "Make plans and have them carried out"
    MEMORY = "memory", "Read and write what memory holds for it"
    MEMORY_FORGET = "memory:forget", "Forget subjects, with every row that names them"
    ADMIN = "admin", "Disable principals and revoke tokens"


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
