"""Cursors: what was not made here is refused before it reaches the database."""

import pytest

from apps.core.ids import BadCursor, decode_position, encode_cursor


@pytest.mark.parametrize("key", [(-1,), (2**63,), ("7",), (True,), (1, 2), ()])
def test_cursor_of_another_list_is_refused(key: tuple[int | str, ...]) -> None:
    with pytest.raises(BadCursor):
        decode_position(encode_cursor(*key))


@pytest.mark.parametrize("cursor", ["", "nonsense", "é", "W10", "bnVsbA"])
def test_unreadable_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(BadCursor):
        decode_position(cursor)


def test_position_is_read_back() -> None:
    assert decode_position(encode_cursor(2**63 - 1)) == 2**63 - 1
