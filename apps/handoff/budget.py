"""Which items a session is shown at once."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol, TypeVar

from apps.handoff.items import Item, Kind


class Costed(Protocol):
    """Something that shows an item."""

    @property
    def item(self) -> Item: ...

    @property
    def cost(self) -> int:
        """In tokens."""

    @property
    def order(self) -> tuple[int, datetime, str]:
        """Of what is shown: by the item's turn, then by what no two have in common."""


C = TypeVar("C", bound=Costed)


def choose(found: Sequence[C], *, max_tokens: int, claim: Callable[[C], C | None]) -> tuple[list[C], list[C]]:
    """What is shown and what goes on waiting, of items in the order of `order`.

    Cautions come in any case, and count. The others come in their turn, until one does not fit any more; where nothing
    else would be shown, the first comes whatever it takes.

    :param claim: takes an item; None if another session was faster.
    """
    shown = [taken for one in found if one.item.kind is Kind.CAUTION and (taken := claim(one))]
    room = max_tokens - sum(one.cost for one in shown)
    waiting: list[C] = []
    for one in found:
        if one.item.kind is Kind.CAUTION:
            continue
        if waiting or (one.cost > room and shown):
            waiting.append(one)
        elif taken := claim(one):
            shown.append(taken)
            room -= one.cost
    return sorted(shown, key=lambda one: one.order), waiting
