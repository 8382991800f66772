"""Pages of a list that lives in memory, by keyset: the cursor holds the name after which the next page begins."""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from mcp_types import INVALID_PARAMS

from apps.core.ids import BadCursor, decode_cursor, encode_cursor
from apps.mcp.protocol import ProtocolError

# Many clients read the first page only, so it holds everything that is there today.
PAGE: Final = 200

T = TypeVar("T")


def page(
    items: Sequence[T], key: Callable[[T], str], cursor: str | None, *, size: int = PAGE
) -> tuple[list[T], str | None]:
    """A page in the order of the key, and the cursor of the next one.

    :raises ProtocolError: if the cursor is not one of ours.
    """
    after = _after(cursor) if cursor is not None else None
    rest = [item for item in sorted(items, key=key) if after is None or key(item) > after]
    shown = rest[:size]
    return shown, encode_cursor(key(shown[-1])) if len(rest) > size else None


def _after(cursor: str) -> str:
    try:
        (after,) = decode_cursor(cursor, str)
    except BadCursor as exc:
        raise ProtocolError(INVALID_PARAMS, exc.detail) from exc
    return str(after)
