"""Result pointers: where a result is, as a text with a scheme."""

import json
import re
from pathlib import PurePosixPath
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from apps.tasks.errors import InvalidPointer

INLINE: Final = "inline"
ARTIFACT: Final = "artifact"
FILE: Final = "file"
MAX_INLINE_BYTES: Final = 65_536
_POINTER: Final = re.compile(r"([a-z][a-z0-9+.-]{0,49}):(\S(?:.*\S)?)", re.ASCII)
_DIGEST: Final = re.compile(r"sha256-([0-9a-f]{64})")


def scheme_of(pointer: str) -> str:
    """:raises InvalidPointer: if the text has no scheme."""
    match = _POINTER.fullmatch(pointer)
    if match is None:
        raise InvalidPointer("A result pointer is <scheme>:<place>, for example s3://bucket/key.")
    return match[1]


def file_path(pointer: str) -> PurePosixPath:
    """The path in a pointer to a file, `file:///…` or `file:/…`, with what stands for other characters put back.

    :raises InvalidPointer: if it names another host, or no absolute path.
    """
    try:
        parts = urlsplit(pointer)
        path = PurePosixPath(unquote(parts.path, errors="strict"))
    except ValueError as exc:
        raise InvalidPointer("A pointer to a file is file:///<path>.") from exc
    if parts.netloc not in {"", "localhost"} or not path.is_absolute() or "\x00" in str(path):
        raise InvalidPointer("A pointer to a file is file:///<path>.")
    return path


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
    """A result as the bytes that its checksum is of: JSON in one order, so that the same said again is the same."""
    return json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()
