"""Typed references: rows have integers, callers have `ent_42`. Parsed and formatted at the boundary only."""

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
