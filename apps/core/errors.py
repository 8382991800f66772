"""Refusals are part of the design: each has a name, a family and a sentence that is safe to show."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar


@dataclass(frozen=True, slots=True)
class FieldError:
    """One fault of an input: a JSON pointer (RFC 6901) to the place, and what is wrong there."""

    pointer: str
    message: str


def pointer_to(*parts: object) -> str:
    """The JSON pointer to a place: `pointer_to("params", 0, "a/b")` is `/params/0/a~1b`."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def near(name: str, known: Iterable[str]) -> str:
    """A question that names the known name most like this one, to stand after a refusal; or nothing."""
    found = difflib.get_close_matches(name[:100].casefold(), list(known), n=1, cutoff=0.75)
    return f" Did you mean {found[0]}?" if found else ""


class DomainError(Exception):
    """An anticipated refusal, safe to show to the caller.

    Raise one of the families below with a code: ``Conflict("The lease is over.", code="lease_lost")``. A class of its
    own is for a refusal that somebody catches. Further keyword arguments become members of the answer
    (`existing_receipt_id`, …).
    """

    code: str = "refused"
    status: int
    """Of the answer over HTTP; set by the family."""
    mending: str = ""
    """What a model that called a tool may do; set by the family."""

    def __init__(
        self, detail: str, *, code: str | None = None, errors: Sequence[FieldError] = (), **extra: Any
    ) -> None:
        super().__init__(detail)
        self.code = code or type(self).code
        self.detail = detail
        self.errors = tuple(errors)
        self.extra = extra


class NotFound(DomainError):
    """The thing named does not exist, or is not visible to the caller."""

    code = "not_found"
    status = 404
    mending = "Check the identifier: what this token may not see is not found either."


class Forbidden(DomainError):
    """The caller is known and may not do this."""

    code = "forbidden"
    status = 403
    mending = "This token can't do it. Ask whoever issued it; calling again won't help."


class Conflict(DomainError):
    """The request was legal once, but the world has moved on."""

    code = "conflict"
    status = 409
    mending = "Look at the present state first; the same call will be refused again."


class Invalid(DomainError):
    """The request can't be understood or breaks a rule; repeating it unchanged is useless."""

    code = "invalid"
    status = 422
    mending = "Change the arguments named above and call again."


class Malformed(DomainError):
    """The request could not even be read (bad JSON, bad reference syntax)."""

    code = "malformed"
    status = 400
    mending = "Change the arguments named above and call again."


class TooLarge(DomainError):
    """A body or a field is over its limit."""

    code = "too_large"
    status = 413
    mending = "Send less, or store the content as an artifact and pass its pointer."


class RateLimited(DomainError):
    """Too many requests; `retry_after` seconds from now there is room again."""

    code = "rate_limited"
    status = 429
    mending = "Wait before calling again."

    def __init__(self, detail: str, *, retry_after: int, **extra: Any) -> None:
        super().__init__(detail, retry_after=retry_after, **extra)
        self.retry_after = retry_after


class Unavailable(DomainError):
    """Something that this request needs does not answer just now; nothing was changed."""

    code = "unavailable"
    status = 503
    mending = "Nothing was changed. Call again later."


A = TypeVar("A")


def only(answers: Sequence[A | DomainError]) -> A:
    """The one answer of a call that is a batch of one.

    :raises DomainError: if that is what it is.
    """
    (answer,) = answers
    if isinstance(answer, DomainError):
        raise answer
    return answer
