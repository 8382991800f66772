"""The parts of a request: where it may be cut, and what each stretch says before any tool is looked at.

Sets of words are bit masks over the places of tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

from apps.plans.local.index import Library
from apps.plans.local.tokens import WHENS, Found, Kind, Reading, Token
from apps.plans.local.words import BOUNDS, GROUPS, HELD, SMALL, UNPLANNED, VERBS, stem

_MOST_PLAIN_CUTS, _MOST_CUTS, _MOST_SEQUELS = 2, 4, 5
_VERB_WITHIN: Final = 6
MARKS: Final = frozenset(",:;.?!()–—-&")  # noqa: RUF001
DETERMINERS: Final = GROUPS["article"] | {"my", "our", "your", "his", "her", "their", "its", "some", "=", "#"}
_STOPS: Final = frozenset((",", ";", ".", "!", "?", "–", "—"))  # noqa: RUF001
_SEQUELS: Final = frozenset({"then", "finally", "afterwards", "next"})
_JOINERS: Final = _STOPS | _SEQUELS | {"and", "also", "please", "plus"}
_WORDLIKE: Final = frozenset(map(Kind, ("language", "country", "currency", "unit", "period", "date", "slug")))
_OBJECTS: Final = frozenset({"the", "my", "our", "a", "an", "this", "all", "it", "its", "them", "him", "her"})
"""Words that stand behind a verb, so that what stands before them is one: "vacuum the kitchen"."""
_ANYONE: Final = frozenset({"i", "we", "it", "they", "anybody", "anyone", "the"})
_ASKING: Final = GROUPS["question"] | GROUPS["be"] | GROUPS["have"] | {"any"}
_NAMING: Final = GROUPS["article"] | GROUPS["preposition"] - {"to"}
"""What stands before a noun: "the status of the repair"."""
_INVERTED: Final = GROUPS["be"] | {"do", "does", "did"}
_LEADING: Final = frozenset({",", "to", "for"}).union(
    *(GROUPS[name] for name in ("polite", "modal", "pronoun", "joiner", "time"))
)
"""Words that may stand before the verb."""
_LISTED: Final = {"small": SMALL, "bound": BOUNDS, "mark": MARKS, "unplanned": UNPLANNED, "held": HELD}


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
    verb_at: int
    """The place of the verb; -1 if there is none."""
    question: bool
    masks: Mapping[str, int]
    """Tokens by what they are: `typed` values with a form of their own, `timed` ones, `content` that somebody must explain,
    `small`, `bound`, `mark`, `unplanned`, `held`, `foreign`, `proper` words, and `turning`: where another part could
    begin."""
    shapes: dict[tuple[int, int, str], tuple[dict[str, float], float]] = field(default_factory=dict)
    """What was found out about its stretches of words."""

    @property
    def tokens(self) -> Sequence[Token]:
        return self.reading.tokens[self.first : self.stop]

    @property
    def text(self) -> str:
        return self.words(self.first, self.stop - 1)

    @property
    def verb(self) -> str:
        return self.stems.get(self.verb_at, "")

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


def mask_of(places: Iterable[int]) -> int:
    """The mask of some places."""
    whole = 0
    for place in places:
        whole |= 1 << place
    return whole


def read_part(reading: Reading, first: int, stop: int, number: int, library: Library) -> Part:
    """Prepare a stretch of tokens: its verb, its values, and the words that need an explanation."""
    tokens = reading.tokens
    within = tokens[first:stop]
    found = tuple(one for one in reading.found if first <= min(one.places) and max(one.places) < stop)
    masks = {name: mask_of(one.place for one in within if one.low in listed) for name, listed in _LISTED.items()}
    masks["typed"] = typed = mask_of(at for one in found if not _is_wordlike(one, tokens) for at in one.places)
    masks["timed"] = mask_of(at for one in found if one.kind in WHENS or one.kind is Kind.DURATION for at in one.places)
    plain = [one.place for one in within if not typed >> one.place & 1]
    stems = {one.place: one.low if typed >> one.place & 1 else one.stem for one in within}
    masks["content"] = mask_of(
        one.place for one in within if any(map(str.isalnum, one.low)) and not (one.low in SMALL or one.low in BOUNDS)
    )
    verb_at, question = _verb(tokens, stems, plain, library)
    behind = next((one.text for one in tokens[stop:] if one.low != "," and one.low not in GROUPS["polite"]), "")
    masks["foreign"] = mask_of(at for at in bits(masks["content"] & ~typed) if not library.has(stems[at]))
    masks["turning"] = mask_of(start for start in turnings(reading, stop, library) if first < start)
    masks["proper"] = mask_of(one.place for one in within if one.text[0].isupper() and one.low.partition("'")[0] != "i")
    asks = question or (verb_at < 0 and behind == "?")
    return Part(reading, first, stop, number, stems, found, verb_at, asks, masks)


def _is_wordlike(found: Found, tokens: Sequence[Token]) -> bool:
    """Is it a plain word that may as well mean something else: a language, a country, "one"?"""
    word = tokens[found.first]
    is_plain = found.first == found.last and word.text.isalpha()
    return (
        is_plain and (found.kind in _WORDLIKE or found.role == "ordinal" or word.low in ("one", "a", "an"))
    ) or found.role in ("left", "right")


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
        acts = library.is_verb(stems[begun]) or (follows in _OBJECTS and library.knows(stems[begun]))
        if acts and not _is_plural(tokens[begun].low):
            return begun, False
    state = next((place + 1 for place in plain if tokens[place].low in GROUPS["be"] and place + 1 in plain), -1)
    if state > 0 and stems[state] in VERBS:
        return state, False
    early = (
        place
        for place in plain
        if place < first + _VERB_WITHIN and tokens[place].low not in SMALL and not _is_plural(tokens[place].low)
        if place == begun or not (tokens[place].low.endswith("ing") or tokens[place - 1].low in _NAMING)
    )
    return next((place for place in early if stems[place] in VERBS), -1), False


def _is_plural(low: str) -> bool:
    """Is it several things rather than an act: "emails", "orders"?"""
    return low.endswith("s") and not low.endswith(("ss", "us", "is")) and stem(low) != low


def turnings(reading: Reading, stop: int, library: Library) -> dict[int, int]:
    """The places where another part may begin, each with the place where the one before ends."""
    tokens = reading.tokens
    held = {place for one in reading.found if not _is_wordlike(one, tokens) for place in one.places}
    found: dict[int, int] = {}
    for token in tokens[1 : max(stop - 1, 1)]:
        if token.place in held or (token.low not in _STOPS and token.low not in ("and", "then")):
            continue
        start, end = token.place + 1, token.place
        while start < stop and tokens[start].low in _JOINERS:
            start += 1
        verb = start  # "and let me see"
        while verb < stop and tokens[verb].low in GROUPS["pronoun" if verb > start else "modal"]:
            verb += 1
        if verb >= stop or start in held or not (_begins(tokens, verb, library) or token.low in (".", "!", "?", ";")):
            continue
        while end > 1 and (tokens[end - 1].low in _STOPS or tokens[end - 1].low in ("and", "then")):
            end -= 1
        found.setdefault(start, end)
    return found


def cuts(reading: Reading, stop: int, library: Library) -> list[tuple[tuple[int, int], ...]]:
    """Return the ways to cut a request into stretches of tokens, the whole first. "then" always cuts, but for the whole.

    :param stop: the end of the request, its last punctuation left out.
    """
    places = sorted(turnings(reading, stop, library).items())
    sure = [one for one in places if is_sequel(reading, one[0])][:_MOST_SEQUELS]
    plain = [one for one in places if one not in sure][:_MOST_CUTS]
    ways = []
    for base in ([], sure) if sure else ([],):
        for chosen in (one for count in range(_MOST_PLAIN_CUTS + 1) for one in combinations(plain, count)):
            both = sorted((*base, *chosen))
            starts, stops = [0, *(start for start, _ in both)], [*(end for _, end in both), stop]
            ways.append(tuple(zip(starts, stops, strict=True)))
    return ways


def is_sequel(reading: Reading, start: int) -> bool:
    """Does a part begin with "then" or the like: not before the one before it has ended?"""
    return not _SEQUELS.isdisjoint(token.low for token in reading.tokens[max(0, start - 3) : start])


def _begins(tokens: Sequence[Token], start: int, library: Library) -> bool:
    """Does something begin here that could be asked for: a verb, or a question?"""
    low, before = tokens[start].low, tokens[start - 1].low
    following = tokens[start + 1].low if start + 1 < len(tokens) else ""
    if low in GROUPS["question"] or (low in _INVERTED and before in ("and", ",")):
        return True
    if low in DETERMINERS and before in ("and", "plus", "also"):  # the price, and its colour
        return True
    acts = library.is_verb(tokens[start].stem) or (following in _OBJECTS and library.knows(tokens[start].stem))
    return following != ":" and ((low not in SMALL and acts) or (low == "have" and following in _OBJECTS))
