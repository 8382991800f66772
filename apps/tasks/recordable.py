"""What can be recorded of a run, whichever door it comes by: limits, and what is said where they are passed."""

import json
import math
from dataclasses import replace
from typing import Any, Final

from apps.core import strict_json
from apps.core.errors import FieldError
from apps.core.strict_json import NotJSON, UnstorableJSON
from apps.tasks.errors import UnrecordableResult
from apps.tasks.shapes import Failure

LONGEST_POINTER: Final = 2000
LONGEST_CHANNEL: Final = 50
LONGEST_CHECKSUM: Final = 100
LONGEST_SUMMARY: Final = 16_384
LONGEST_CODE: Final = 100
LONGEST_ERROR: Final = 4000
LONGEST_PROGRESS: Final = 500
LONGEST_PAUSE_SECONDS: Final = 604_800


def as_json(document: Any) -> Any:
    """A value of Python's as the JSON that is recorded of it.

    :raises UnstorableJSON: if it is none, or none that can be stored.
    """
    try:
        return strict_json.loads(json.dumps(document, allow_nan=False).encode())
    except (TypeError, ValueError, RecursionError, NotJSON) as exc:
        raise UnstorableJSON(f"It is no JSON: {exc}") from exc


def check_result(*, pointer: str | None, channel: str | None, checksum: str | None, summary: str | None) -> None:
    """:raises UnrecordableResult: if one of these is too long, empty, or can't be stored."""
    given = {
        "result_pointer": (pointer, LONGEST_POINTER),
        "result_channel": (channel, LONGEST_CHANNEL),
        "checksum": (checksum, LONGEST_CHECKSUM),
        "summary": (summary, LONGEST_SUMMARY),
    }
    for name, (text, longest) in given.items():
        if text is None:
            continue
        if not 0 < len(text) <= longest:
            fault = f"has {len(text)} characters, and may have 1 to {longest}"
            raise UnrecordableResult(f"The {name} {fault}.", errors=[FieldError(f"/{name}", fault)])
        try:
            strict_json.check(text, pointer=f"/{name}")
        except UnstorableJSON as exc:
            raise UnrecordableResult(exc.detail, errors=exc.errors) from exc


def mended(failure: Failure) -> Failure:
    """A failure as it can be recorded: what is too long is cut, what can't be stored is replaced."""
    details = failure.details
    try:
        details = None if details is None else as_json(details)
    except UnstorableJSON as exc:
        details = {"left_out": legible(exc.detail, LONGEST_ERROR)}
    code = legible(failure.code, LONGEST_CODE) or "failed"
    return replace(
        failure,
        code=code,
        message=legible(failure.message, LONGEST_ERROR) or code,
        details=details,
        retry_after=None if failure.retry_after is None else pause(failure.retry_after),
    )


def pause(seconds: float) -> float:
    """So long a task may be told to wait."""
    return min(max(seconds, 0.0), LONGEST_PAUSE_SECONDS) if math.isfinite(seconds) else 0.0


def legible(text: str, longest: int) -> str:
    """A text as the database and a reader can take it."""
    return strict_json.storable(text[:longest])
