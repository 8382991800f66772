"""Which param of a tool a wish announces for something that it names exactly: by the param's own words, or by from and to. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from apps.core.lexical import stem, words
from apps.plans import lexicon
from apps.plans.clauses import Clause
from apps.plans.spans import MASK, Span
from apps.plans.verbs import listed

_FAR: Final = 4
"""So many words before something named exactly may say what it is."""
_FROM: Final = frozenset({"from", "source", "origin", "src", "sender"})
_TO: Final = frozenset({"to", "target", "destination", "dest", "dst", "recipient"})
_DIRECTIONS: Final = {"from": -1, "as": -1, "to": 1, "into": 1, "onto": 1}
_REPLACES: Final = lexicon.verb("replace")
_BY: Final = frozenset({"by", "with"})
"""What is put in the place of something comes behind one of these."""
_EARLIER: Final = frozenset({"old", "start", "begin"})
_LATER: Final = frozenset({"new", "end", "until"})
"""What goes with from and to as well, though not the other way round: the new name may be what something is renamed from."""
_PARTS: Final = listed("in inside within at under over above below on about by with for using and")
"""What is said before one of these is no name of what comes after it."""
_ALSO: Final = {
    "called": "name", "named": "name",
    **dict.fromkeys(("maximum", "under", "below", "most", "less", "fewer"), "max"),
    **dict.fromkeys(("minimum", "over", "above", "least", "more"), "min"),
}  # fmt: skip
"""How else a wish says what params are named by."""
UNFIT: Final = -1


def announcements(clause: Clause) -> dict[int, tuple[str, ...]]:
    """The words right before each thing that a clause names exactly, by its number; what stands before another such is none."""
    found: dict[int, tuple[str, ...]] = {}
    end = 0
    for mark in MASK.finditer(clause.marked):
        said = words(clause.marked[end : mark.start()])
        if clause.verb == _REPLACES:
            said = ["to" if word in _BY else word for word in said]
        parted = max((place for place, word in enumerate(said) if word in _PARTS), default=0)
        found[int(mark[1])] = tuple(said[parted:][-_FAR:])
        end = mark.end()
    return found


def fit(tokens: Sequence[str], said: Sequence[str]) -> int:
    """How well words announce a param of a name in tokens: 0 is not at all, `UNFIT` that it goes the other way."""
    own = set(map(stem, tokens))
    named = len(own.intersection(stem(_ALSO.get(word, word)) for word in said))
    way = next((_DIRECTIONS[word] for word in reversed(said) if word in _DIRECTIONS), 0)
    wanted = _direction(tokens, _FROM, _TO)
    if not named and way * wanted < 0:
        return UNFIT
    goes = way * (wanted or _direction(tokens, _EARLIER, _LATER)) > 0
    return named + (2 if goes and said[-1] in _DIRECTIONS else goes)


def _direction(tokens: Sequence[str], away: frozenset[str], towards: frozenset[str]) -> int:
    return (not towards.isdisjoint(tokens)) - (not away.isdisjoint(tokens))


def are_alike(one: Sequence[str], other: Sequence[str]) -> bool:
    """Are two params named so that they can hold things that are named side by side: text_a and text_b?"""
    return not set(one).isdisjoint(other)


def beside(span: Span, clause: Clause) -> frozenset[int]:
    """The numbers of what a clause names side by side with something."""
    numbers = (frozenset(one.number for one in group) for group in clause.conjoined)
    return frozenset().union(*(group for group in numbers if span.number in group)) - {span.number}
