"""What past plans teach."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """One plan as it was carried out: the request, the tools that ran in order, and which result went to which tool."""

    request: str
    tools: tuple[str, ...]
    links: frozenset[tuple[str, str]] = frozenset()
    weight: float = 1.0
    """How much it counts: less as it ages, and where only a part ran to its end."""
