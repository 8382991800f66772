"""The errors of this package: all are a GatehouseError."""

from collections.abc import Mapping
from typing import Any, ClassVar


class GatehouseError(Exception):
    """A request failed, or its outcome is unknown."""


class Unreachable(GatehouseError):
    """The hub did not answer in time. The request may have happened; repeating it with the same arguments is safe."""

    def __init__(self, message: str, *, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """In seconds, if the answer named it."""


class Refused(GatehouseError):
    """The hub refused, with an RFC 9457 problem document. Subclasses are named after its `code`."""

    _by_code: ClassVar[dict[str, "type[Refused]"]] = {}

    def __init_subclass__(cls, *, code: str) -> None:
        """:param code: one, or several with spaces between."""
        cls._by_code |= dict.fromkeys(code.split(), cls)

    def __init__(self, status: int, document: Mapping[str, Any]) -> None:
        self.status = status
        self.document = document
        """All members of the answer, also those of this code only (`existing_receipt_id`)."""
        self.code = str(document.get("code") or "refused")
        self.detail = str(document.get("detail", ""))
        self.errors: list[dict[str, str]] = document.get("errors", [])
        """The faults of the input: a JSON `pointer` to each, and a `message`."""
        self.trace_id = str(document.get("trace_id", ""))
        """Identifies this request in the hub's logs."""
        super().__init__(f"{status} {self.code}: {self.detail}")

    @classmethod
    def of(cls, status: int, document: Mapping[str, Any]) -> "Refused":
        """The most fitting class for an answer."""
        return cls._by_code.get(str(document.get("code")), Refused)(status, document)


class Unauthorized(Refused, code="not_authenticated authentication_failed"):
    """No token, or one that the hub does not accept."""


class MissingScope(Refused, code="missing_scope"):
    """The token may not do this."""


class RateLimited(Refused, code="rate_limited"):
    """Too many requests, for longer than the client retries."""

    def __init__(self, status: int, document: Mapping[str, Any], *, retry_after: float = 0.0) -> None:
        super().__init__(status, document)
        self.retry_after = retry_after
        """In seconds, if the answer named it."""


class UnknownTask(Refused, code="unknown_task"):
    pass


class UnknownTaskType(Refused, code="unknown_task_type"):
    pass


class UnknownQueue(Refused, code="unknown_queue"):
    """A queue is created by the first task type that names it."""


class UnknownRecipient(Refused, code="unknown_recipient"):
    pass


class InvalidParams(Refused, code="invalid_params"):
    """The params do not fit the task type's schema; `errors` says where."""


class IdempotencyConflict(Refused, code="idempotency_conflict"):
    """The key was used for another request."""


class DedupeConflict(Refused, code="dedupe_conflict"):
    """The dedupe key was used for a receipt with another content."""


class BadLeaseToken(Refused, code="bad_lease_token"):
    """The lease was never granted to this principal."""


class LeaseLost(Refused, code="lease_lost"):
    """The run is over: the task is leased by another worker, queued again, or has ended."""

    @property
    def reason(self) -> str:
        """superseded, requeued, canceled, completed or expired."""
        return str(self.document.get("reason", ""))


class AlreadyDecided(Refused, code="already_decided"):
    """This run has ended by another call, with another outcome or content."""


class AlreadyFinished(Refused, code="already_finished"):
    """The task has ended."""


class NotADeadLetter(Refused, code="not_a_dead_letter"):
    """The task has not failed for good."""


class NotLeased(Refused, code="not_leased"):
    """The task is not leased."""


class NotFinished(Refused, code="not_finished"):
    """The task has no result yet."""
