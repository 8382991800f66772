# ruff: noqa: RUF001 - people type these marks
"""The parts of a request: where it can be cut, and what each stretch says before any tool is looked at.

A request is cut before verbs and questions, at "and", "then", commas and full stops. Sets of words are bit masks over the
places of tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

from apps.plans.local.index import Library
from apps.plans.local.tokens import Found, Kind, Reading, Token
from apps.plans.local.words import COMMON, GROUPS, HOLDING, SMALL, UNPLANNED, VERBS, stem

MOST_PARTS: Final = 6
_MOST_PLAIN_CUTS: Final = 2
_MOST_CUTS: Final = 4
_SHORTEST: Final = 4
_VERB_WITHIN: Final = 6
PUNCTUATION: Final = frozenset(",:;.?!()–—-")
DETERMINERS: Final = GROUPS["article"] | {"my", "our", "your", "his", "her", "their", "its", "some", "=", "#"}
HELD: Final = frozenset().union(*(GROUPS[name] for name in HOLDING))
"""Words that change what is asked for, so that somebody must explain them."""
BOUNDS: Final = (
    GROUPS["preposition"]
    | GROUPS["named"]
    | GROUPS["joiner"]
    | GROUPS["be"]
    | {"who", "which", "because", "than", "between", "until", "till", "since", "after", "before", "near", "under"}
    | {"below", "above", "per", "by", "due", "without", "except", "that", "whose", "where", "containing", "matching"}
    | {"mentioning", "regarding", "concerning", "including", "inside"}
)
"""Words that a value cut out of plain words neither begins nor ends with."""
WHENS: Final = frozenset({Kind.DATE, Kind.DATETIME, Kind.TIME, Kind.PERIOD, Kind.DURATION})
_STOPS: Final = frozenset((",", ";", ".", "!", "?", "–", "—"))
_JOINERS: Final = frozenset({"and", "then", "also", "please", "finally", "afterwards", "next", "plus"})
_SEQUELS: Final = frozenset({"then", "finally", "afterwards", "next"})
_PARTICLES: Final = frozenset({"up", "over", "rid", "down", "back", "out", "in", "off", "on", "away"})
_WORDLIKE: Final = frozenset({Kind.LANGUAGE, Kind.COUNTRY, Kind.CURRENCY, Kind.UNIT, Kind.PERIOD, Kind.DATE, Kind.SLUG})
_DETERMINERS_OF_ACTS: Final = frozenset({"the", "my", "our", "a", "an", "this", "all"})
"""Words that stand behind a verb, so that what stands before them is one: "vacuum the kitchen"."""
_OF_ONE: Final = frozenset({"a", "an", "the", "its", "my", "their", "one"})
_OBJECTS: Final = _DETERMINERS_OF_ACTS | {"it", "its", "them", "him", "her"}
_MEANT: Final = frozenset({"it", "its", "them", "there", "him", "her"})
_ANYONE: Final = frozenset({"i", "we", "it", "they", "anybody", "anyone", "the"})
_ASKING: Final = GROUPS["question"] | GROUPS["be"] | GROUPS["have"] | {"any"}
_LEADING: Final = frozenset({",", "to", "for"}).union(
    *(GROUPS[name] for name in ("polite", "modal", "pronoun", "joiner", "time"))
)
"""Words that may stand before the verb."""


_LISTED: Final = {
    "small": SMALL,
    "bound": BOUNDS,
    "mark": PUNCTUATION,
    "unplanned": UNPLANNED,
    "held": HELD,
}


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a request that asks for one thing."""

    reading: Reading
    first: int
    stop: int
    number: int
    stems: Mapping[int, str]
    """The stem of each token."""
    found: tuple[Found, ...]
    typed: int
    """Tokens of values with a form of their own."""
    timed: int
    """Tokens of dates, times and durations."""
    content: int
    """Tokens that somebody must explain."""
    joined: int
    """Tokens that belong to the verb before: the "back" of "roll back"."""
    verb_at: int
    """The place of the verb; -1 if there is none."""
    verb: str
    question: bool
    masks: Mapping[str, int]
    """Tokens by what words they are: `small`, `bound`, `mark`, `unplanned`, `held`, `tying`, `foreign`, `proper`; `turning`:
    where another part could begin, `meant`: those behind it that speak of what was before."""

    shapes: dict[tuple[int, int, str], tuple[dict[str, float], float]] = field(default_factory=dict)
    """What was found out about its stretches of words."""

    @property
    def tokens(self) -> Sequence[Token]:
        return self.reading.tokens[self.first : self.stop]

    @property
    def text(self) -> str:
        return self.words(self.first, self.stop - 1)

    def low(self, place: int) -> str:
        """The token at a place in lower case; empty beyond the part."""
        return self.reading.tokens[place].low if self.first <= place < self.stop else ""

    def words(self, first: int, last: int) -> str:
        """The request's own words from one token to another."""
        return self.reading.text[self.reading.tokens[first].start : self.reading.tokens[last].end]

    def before(self, place: int) -> int:
        """The place of the token before, determiners left out; below `first` if there is none."""
        place -= 1
        while place >= self.first and self.reading.tokens[place].low in DETERMINERS:
            place -= 1
        return place


def bits(mask: int) -> Iterator[int]:
    """The places in a mask, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def stretch(first: int, last: int) -> int:
    """The mask of all places from one to another."""
    return (1 << (last + 1)) - (1 << first)


def sum_of(masks: Iterable[int]) -> int:
    """All places of some masks."""
    whole = 0
    for mask in masks:
        whole |= mask
    return whole


def mask_of(found: Found) -> int:
    return sum(1 << place for place in found.places)


def read_part(reading: Reading, first: int, stop: int, number: int, library: Library) -> Part:
    """Prepare a stretch of tokens: its verb, its values, and the words that need an explanation."""
    tokens = reading.tokens
    found = tuple(one for one in reading.found if first <= min(one.places) and max(one.places) < stop)
    typed = timed = 0
    for one in found:
        typed |= 0 if _is_wordlike(one, tokens) else mask_of(one)
        timed |= mask_of(one) if one.kind in WHENS else 0
    plain = [place for place in range(first, stop) if not typed >> place & 1]
    stems = {place: tokens[place].low if typed >> place & 1 else tokens[place].stem for place in range(first, stop)}
    joined = 0
    for place in plain:
        if place - 1 in stems and tokens[place].low in _PARTICLES and not typed >> (place - 1) & 1:
            whole = stem(tokens[place - 1].low + tokens[place].low)
            if library.knows(whole):
                stems[place - 1] = whole
                joined |= 1 << place
    content = 0
    for place in stems:
        low = tokens[place].low
        small = low in SMALL or low in BOUNDS or joined >> place & 1
        between = low == "x" and place > 0 and typed >> (place - 1) & 1 and typed >> (place + 1) & 1
        if any(map(str.isalnum, low)) and not small and not between:
            content |= 1 << place
    verb_at, question = _verb(tokens, stems, plain, library)
    behind = next((one.text for one in tokens[stop:] if one.low != "," and one.low not in GROUPS["polite"]), "")
    question = question or (verb_at < 0 and behind == "?")
    verb = stems[verb_at] if verb_at >= 0 else ""
    masks = {
        name: sum(1 << one.place for one in tokens[first:stop] if one.low in listed) for name, listed in _LISTED.items()
    }
    masks["tying"] = sum(1 << place for place in plain if place != verb_at and _is_tying(tokens, place, stop))
    masks["bound"] |= masks["tying"]
    masks["foreign"] = sum(1 << at for at in bits(content & ~typed) if not library.has(stems[at]))
    masks["turning"] = sum(1 << start for start in turnings(reading, stop, library) if first < start)
    later = range(next(bits(masks["turning"]), stop), stop)
    masks["meant"] = sum(1 << at for at in later if tokens[at].low in _MEANT)
    masks["proper"] = sum(1 << one.place for one in tokens[first:stop] if one.text[0].isupper())
    return Part(
        reading, first, stop, number, stems, found, typed, timed, content, joined, verb_at, verb, question, masks
    )


def _is_wordlike(found: Found, tokens: Sequence[Token]) -> bool:
    """Is it a plain word that may as well mean something else: a language, a country, "one"?"""
    word = tokens[found.first]
    if found.first != found.last or not word.text.isalpha():
        return False
    return found.kind in _WORDLIKE or word.low in ("one", "a", "an")


def _verb(
    tokens: Sequence[Token], stems: Mapping[int, str], plain: Sequence[int], library: Library
) -> tuple[int, bool]:
    """The place of the verb, and whether the part is a question."""
    first = next(iter(stems))
    if tokens[first].low in GROUPS["modal"] and first + 1 in stems and tokens[first + 1].low in _ANYONE:
        return -1, True
    begun = next((place for place in stems if tokens[place].low not in _LEADING), -1)
    if begun in plain:
        follows = tokens[begun + 1].low if begun + 1 in stems else ""
        if tokens[begun].low in _ASKING and not (tokens[begun].low == "have" and follows in _OBJECTS):
            return -1, True
        acts = library.is_verb(stems[begun]) or (follows in _DETERMINERS_OF_ACTS and library.knows(stems[begun]))
        if acts and not _is_plural(tokens[begun].low):
            return begun, False
    state = next((place + 1 for place in plain if tokens[place].low in GROUPS["be"] and place + 1 in plain), -1)
    if state > 0 and (stems[state] in VERBS or tokens[state].low == "done"):
        return state, False
    early = (
        place
        for place in plain
        if place < first + _VERB_WITHIN and tokens[place].low not in SMALL and not _is_plural(tokens[place].low)
        if place == begun or not tokens[place].low.endswith("ing")
    )
    return next((place for place in early if stems[place] in VERBS), -1), False


def _is_tying(tokens: Sequence[Token], place: int, stop: int) -> bool:
    """Does a word only tie what follows to what stands before it: "leaving at", "assigned to"?"""
    low = tokens[place].low
    follows = tokens[place + 1].low if place + 1 < stop else ""
    return place > 0 and low.endswith(("ing", "ed")) and len(low) > _SHORTEST and follows in BOUNDS


def _is_plural(low: str) -> bool:
    """Is it several things rather than an act: "emails", "orders"?"""
    return low.endswith("s") and not low.endswith(("ss", "us", "is")) and low not in COMMON


def turnings(reading: Reading, stop: int, library: Library) -> dict[int, int]:
    """The places where another part may begin, each with the place where the one before ends."""
    tokens = reading.tokens
    held = {place for one in reading.found if not _is_wordlike(one, tokens) for place in one.places}
    found: dict[int, int] = {}
    for token in tokens[1 : max(stop - 1, 1)]:
        if token.place in held or (token.low not in _STOPS and token.low not in ("and", "then")):
            continue
        start = token.place + 1
        while start < stop and (tokens[start].low in _JOINERS or tokens[start].low in _STOPS):
            start += 1
        if start >= stop or start in held or not (_begins(tokens, start, library) or token.low in (".", "!", "?")):
            continue
        end = token.place
        while end > 1 and (tokens[end - 1].low in _STOPS or tokens[end - 1].low in ("and", "then")):
            end -= 1
        found.setdefault(start, end)
    return found


def cuts(reading: Reading, stop: int, library: Library) -> list[tuple[tuple[int, int], ...]]:
    """Return the ways to cut a request into stretches of tokens, the whole first.

    :param stop: the end of the request, its last punctuation left out.
    """
    places = sorted(turnings(reading, stop, library).items())
    plain = [one for one in places if not is_sequel(reading, one[0])]
    sure = [one for one in places if one not in plain][: MOST_PARTS - 1]
    ways = []
    for base in ([], sure) if sure else ([],):
        for count in range(_MOST_PLAIN_CUTS + 1):
            for chosen in combinations(plain[:_MOST_CUTS], count):
                both = sorted((*base, *chosen))
                starts = [0, *(start for start, _ in both)]
                stops = [*(end for _, end in both), stop]
                ways.append(tuple(zip(starts, stops, strict=True)))
    return ways


def is_sequel(reading: Reading, start: int) -> bool:
    """Does a part begin with "then" or the like: not before the one before it has ended?"""
    before = [token.low for token in reading.tokens[max(0, start - 3) : start]]
    return bool(_SEQUELS.intersection(before))


def _begins(tokens: Sequence[Token], start: int, library: Library) -> bool:
    """Does something begin here that could be asked for: a verb, or a question?"""
    low = tokens[start].low
    following = tokens[start + 1].low if start + 1 < len(tokens) else ""
    if following == ":":
        return False
    if low == "have" and following in _OBJECTS:
        return True
    if low in GROUPS["question"] or (low in GROUPS["be"] and tokens[start - 1].low in ("and", ",")):
        return True
    if low in _OF_ONE and tokens[start - 1].low in ("and", "plus", "also"):  # the price of it, and its colour
        return True
    joined = stem(low + following) if following in _PARTICLES else ""
    acts = following in _OBJECTS and library.knows(tokens[start].stem)
    return low not in SMALL and (acts or library.is_verb(tokens[start].stem) or bool(joined and library.knows(joined)))
