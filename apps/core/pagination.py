"""Keyset cursors: a page starts after the last row of the one before, so cost never grows with depth."""

import base64
import binascii
import json

from apps.core.errors import Malformed


class BadCursor(Malformed):
    """The cursor was not made by this deployment."""

    code = "bad_cursor"


def encode_cursor(*key: int | str) -> str:
    """An opaque cursor that stands for the sort key of a page's last row."""
    return base64.urlsafe_b64encode(json.dumps(key).encode()).rstrip(b"=").decode()


def decode_cursor(cursor: str, *types: type[int] | type[str]) -> tuple[int | str, ...]:
    """The sort key in a cursor.

    :raises BadCursor: if it can't be read or has another shape.
    """
    try:
        key = json.loads(base64.urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4)))
    except (ValueError, RecursionError, binascii.Error) as exc:
        raise BadCursor("This cursor can't be read.") from exc
    if not isinstance(key, list) or [type(part) for part in key] != list(types):
        raise BadCursor("This cursor belongs to another list.")
    return tuple(key)


def decode_position(cursor: str) -> int:
    """The one number in a cursor: a key or a place in a list, which the database can compare with.

    :raises BadCursor: as :func:`decode_cursor`.
    """
    (position,) = decode_cursor(cursor, int)
    if not isinstance(position, int) or not 0 <= position < 2**63:
        raise BadCursor("This cursor belongs to another list.")
    return position
