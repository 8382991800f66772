"""What a snapshot is called: made once when it is published, from what its receipts say."""

from collections.abc import Sequence
from typing import Final

_TITLE: Final = 200
_SUMMARY: Final = 1000


def title(*, count: int, event_family: str, resource_ref: str) -> str:
    """`12 ci_updates on pr:135`, cut to what a title may hold."""
    return _cut(f"{count} {event_family} on {resource_ref}", _TITLE)


def summary(*, count: int, event_family: str, resource_ref: str, latest_titles: Sequence[str], hint: str | None) -> str:
    """The latest hint of the source; else how many, of what, on what, and the newest titles."""
    if hint:
        return _cut(hint, _SUMMARY)
    latest = "; ".join(_cut(one, 120) for one in latest_titles)
    return _cut(f"{count} {event_family} on {resource_ref}. Latest: {latest}", _SUMMARY)


def fitting(title: str, summary: str) -> tuple[str, str]:
    """Words of a source, cut to what a snapshot may hold."""
    return _cut(title, _TITLE), _cut(summary, _SUMMARY)


def tokens_estimate(*texts: str | None) -> int:
    """About how many tokens of a model's context these texts take (four characters each, and a frame)."""
    return 40 + sum(len(text) for text in texts if text) // 4


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
