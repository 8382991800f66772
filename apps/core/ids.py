"""References and cursors of callers: rows have integers, callers have `ent_42`. Used at the boundary only.

A cursor stands for the last row of a page, so that the next page costs the same at any depth.
"""

import base64
import binascii
import json
import re
import secrets
from typing import Final

from apps.core.errors import Malformed

_REF: Final = re.compile(r"([a-z]{2,8})_([1-9][0-9]{0,17})", re.ASCII)


def format_ref(prefix: str, number: int) -> str:
    """`format_ref("ent", 42)` is `ent_42`."""
    return f"{prefix}_{number}"


def parse_ref(prefix: str, ref: str) -> int:
    """The number in a typed reference.

    :raises Malformed: if the text is no reference, or one of another type.
    """
    match = _REF.fullmatch(ref)
    if match is None or match[1] != prefix:
        raise Malformed(f"{ref[:40]!r} is not a reference of the form {prefix}_<number>.")
    return int(match[2])


def random_id(prefix: str) -> str:
    """A new unguessable identifier, `<prefix>_<24 hex digits>` (96 bits)."""
    return f"{prefix}_{secrets.token_hex(12)}"


def fits_an_address(name: str) -> bool:
    """Whether a name can be one part of a URL's path."""
    return "/" not in name and name not in {".", ".."}


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
