"""Results and failures as they are recorded: pointers, limits, and what is refused or cut."""

import json
import math
import re
from typing import Any, Final

from apps.core import strict_json
from apps.core.errors import Conflict, FieldError, Invalid, NotFound
from apps.core.strict_json import NotJSON, UnstorableJSON

INLINE: Final = "inline"
ARTIFACT: Final = "artifact"
MAX_INLINE_BYTES: Final = 65_536
_POINTER: Final = re.compile(r"([a-z][a-z0-9+.-]{0,49}):(\S(?:.*\S)?)", re.ASCII)
_DIGEST: Final = re.compile(r"sha256-([0-9a-f]{64})")


class InvalidPointer(Invalid):
    """The result pointer can't be taken as it is."""

    code = "invalid_pointer"


class UnknownArtifact(NotFound):
    code = "unknown_artifact"


class UnreadableResult(Conflict):
    """This deployment does not read what the pointer points to."""

    code = "unreadable_result"


def scheme_of(pointer: str) -> str:
    """:raises InvalidPointer: if the text has no scheme."""
    match = _POINTER.fullmatch(pointer)
    if match is None:
        raise InvalidPointer("A result pointer is <scheme>:<place>, for example s3://bucket/key.")
    return match[1]


def artifact_pointer(digest: str) -> str:
    """The pointer to the artifact with this SHA-256."""
    return f"{ARTIFACT}:sha256-{digest}"


def artifact_digest(pointer: str) -> str:
    """The SHA-256 in an artifact's pointer.

    :raises InvalidPointer: if it is no pointer to an artifact.
    """
    match = _DIGEST.fullmatch(pointer.removeprefix(f"{ARTIFACT}:"))
    if match is None:
        raise InvalidPointer("A pointer to an artifact is artifact:sha256-<64 hex digits>.")
    return match[1]


def inline_bytes(content: Any) -> bytes:
    """The bytes of an inline result: JSON with sorted keys, so that an equal result has an equal checksum."""
    return json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


LONGEST_POINTER: Final = 2000
LONGEST_CHANNEL: Final = 50
LONGEST_CHECKSUM: Final = 100
LONGEST_SUMMARY: Final = 16_384
LONGEST_CODE: Final = 100
LONGEST_ERROR: Final = 4000
LONGEST_PROGRESS: Final = 500
LONGEST_PAUSE_SECONDS: Final = 604_800


def as_json(document: Any) -> Any:
    """A Python value as the JSON that is recorded.

    :raises UnstorableJSON: if it is none, or none that can be stored.
    """
    try:
        return strict_json.loads(json.dumps(document, allow_nan=False).encode())
    except (TypeError, ValueError, RecursionError, NotJSON) as exc:
        raise UnstorableJSON(f"It is no JSON: {exc}") from exc


def check_result(*, pointer: str | None, summary: str | None) -> None:
    """:raises Invalid: `unrecordable_result` if one of these is too long, empty, or can't be stored."""
    given = {"result_pointer": (pointer, LONGEST_POINTER), "summary": (summary, LONGEST_SUMMARY)}
    for name, (text, longest) in given.items():
        if text is None:
            continue
        if not 0 < len(text) <= longest:
            fault = f"has {len(text)} characters, and may have 1 to {longest}"
            raise Invalid(f"The {name} {fault}.", errors=[FieldError(f"/{name}", fault)], code="unrecordable_result")
        try:
            strict_json.check(text, pointer=f"/{name}")
        except UnstorableJSON as exc:
            raise Invalid(exc.detail, errors=exc.errors, code="unrecordable_result") from exc


def pause(seconds: float) -> float:
    """A delay within the allowed range."""
    return min(max(seconds, 0.0), LONGEST_PAUSE_SECONDS) if math.isfinite(seconds) else 0.0


def legible(text: str, longest: int) -> str:
    """A text without characters that can't be stored, cut to a length."""
    return strict_json.storable(text[:longest])
