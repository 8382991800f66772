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
    """The hub refused, with an RFC 9457 problem document. `code` says why."""

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


class RateLimited(Refused, code="rate_limited"):
    """Too many requests, for longer than the client retries."""

    def __init__(self, status: int, document: Mapping[str, Any], *, retry_after: float = 0.0) -> None:
        super().__init__(status, document)
        self.retry_after = retry_after
        """In seconds, if the answer named it."""


class LeaseLost(Refused, code="lease_lost already_decided bad_lease_token"):
    """The run is over, has ended with another outcome, or was never leased to this principal."""


class NotFinished(Refused, code="not_finished"):
    """The task has no result yet."""
