# ruff: noqa: RUF001 - people type these marks
"""The values that a part of a request may give a param, and what speaks for and against each.

Values are proposed generously. What speaks for them is named, not weighed: the weights are learned. Names begin with the sort
of the value: `n` a number, `t` another typed one, `e` a choice, `s` a switch, `c` words cut out of the part.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Final

from apps.plans.local.index import Library, Profile, sort_of
from apps.plans.local.params import Param, coerced, fits, normal
from apps.plans.local.parts import MARKS, Part, bits, mask_of, stretch
from apps.plans.local.tokens import NUMERIC, WHENS, Kind
from apps.plans.local.words import BOUNDS, GROUPS, HELD, SMALL, WEIGHTS, near, stem
from apps.plans.proposals import Evidence

SCORE: Final = WEIGHTS["score"]
FIRM: Final = 0.6
"""A word counts as explained from this certainty on; below it, it is a weak trace."""
SECOND: Final = 512
"""So far up the masks are the places of values that are the second of a range or a pair."""
_MOST, _COVERED, _UNSUITED = 10, 0.2, 0.4
_LONGEST: Final = {"text": 25, "query": 12, "title": 12, "name": 8, "code": 2}
"""How many words a value of each sort has at most."""
_PLAIN: Final = {
    "text": "text",
    "query": "query",
    "title": "title",
    **dict.fromkeys(("name", "other", "user", "channel"), "name"),
    **dict.fromkeys(("slug", "repo", "id", "path", "version"), "code"),
}
"""The roles that plain words may serve, each with its sort."""
SAYING: Final = frozenset({"saying", "says", "say", "that", "reading", ":", "telling", "because"})
_FROM: Final = frozenset({"from", "between", "since", "starting", "after"})
_TO: Final = frozenset({"to", "until", "till", "into", "through", "before", "in", "as"})
_ENDS: Final = {
    "start": frozenset(map(stem, ("source", "src", "from", "old", "origin", "sender"))),
    "end": frozenset(map(stem, ("destination", "dest", "target", "to", "new", "recipient"))),
}
_SWITCHES: Final = {
    **dict.fromkeys(("on", "enable", "enabled", "activate", "activated", "true", "yes"), True),
    **dict.fromkeys(("off", "disable", "disabled", "deactivate", "deactivated", "false", "no"), False),
}
_NEGATED: Final = 4
"""So far ahead of a flag may stand what says that it is not wanted: "no mail to the attendees"."""
_SKIPPING: Final = frozenset(map(stem, ("skip", "hide", "exclude", "omit")))
_NAMED_HALF: Final = frozenset(map(stem, ("first", "given", "forename", "last", "family", "surname")))
_TITLES: Final = frozenset(("mr", "mrs", "ms", "miss", "dr", "prof", "sir", "madam"))
_UNTOLD: Final = frozenset({"is", "has", "includ", "enabl", "onli", "on", "activ"})
_ROW: Final = frozenset({"and", "&", ",", "in", "on", "for", "the"})
_TURNING: Final = GROUPS["condition"] | GROUPS["exception"]
_COMPARING: Final = frozenset({"over", "under", "above", "below", "than", "least", "beyond", "exceeding"})


@dataclass(slots=True)
class Option:
    """A value that a param may take."""

    value: Any
    evidence: Evidence
    told: Mapping[str, float]
    """What speaks for it and against it."""
    mask: int = 0
    """The tokens that it takes."""
    text: str = ""
    first: int = -1
    last: int = -1
    kind: Kind | None = None
    fit: float = 1.0
    """How well its kind is the param's."""
    side: str = ""
    """`first` or `second` of a range or a pair, which may stand on the same tokens as the other."""
    gain: float = field(init=False)

    def __post_init__(self) -> None:
        self.gain = weighed(self.told)

    @property
    def claim(self) -> int:
        """What no other value may claim with it: its tokens, for both sides or its own."""
        return self.mask if self.side == "first" else self.mask << SECOND | (0 if self.side else self.mask)

    @property
    def is_announced(self) -> bool:
        """Do the words around it say whose value it is?"""
        return any(name == "side" or name.endswith((".named", ".cue", ".named_after")) for name in self.told)

    @property
    def is_proper(self) -> bool:
        """Is it a name cut from plain words, and do capitals tell where it begins and ends?"""
        is_cut = self.evidence == Evidence.CUT
        return is_cut and any(
            f"c.proper.{sort}" in self.told and f"c.short.{sort}" not in self.told for sort in _LONGEST
        )


@dataclass(frozen=True, slots=True)
class Each:
    """Values of a param that takes one: the tool is called for each of them."""

    values: tuple[Any, ...]


def together(*told: Mapping[str, float]) -> defaultdict[str, float]:
    """All that is told."""
    found = defaultdict[str, float](float)
    for one in told:
        for name, value in one.items():
            found[name] += value
    return found


def weighed(told: Mapping[str, float]) -> float:
    """What is told, by the learned weights."""
    total = 0.0
    for name, value in told.items():
        total += SCORE.get(name, 0.0) * value
    return total


class Options:
    """The options of one part for the params of one tool."""

    def __init__(self, part: Part, profiles: Sequence[Profile], library: Library, taken: int) -> None:
        """Prepare the options.

        :param profiles: the tool, and further ones that the part speaks of.
        :param taken: the tokens of the further ones' values.
        """
        self.part, self.profile, self.library, self._taken, masks = part, profiles[0], library, taken, part.masks
        self.explained = {
            place: 0.0 if masks["typed"] >> place & 1 else max(one.explains(stemmed) for one in profiles)
            for place, stemmed in part.stems.items()
        }
        params = self.profile.params
        self._owners = Counter(word for param in params for word in param.own)
        self._known = mask_of(at for at, sure in self.explained.items() if sure >= FIRM) & ~masks["small"]
        self._nouns = mask_of(at for at, stemmed in part.stems.items() if stemmed in self.profile.nouns)
        self._spoken = {
            param.name: mask_of(at for at, stemmed in part.stems.items() if stemmed in param.own and at != part.verb_at)
            for param in params
        }
        self._owned = mask_of(at for at, stemmed in part.stems.items() if stemmed in self._owners)
        naming = mask_of(
            at for at, stemmed in part.stems.items() if at == part.verb_at or stemmed in self.profile.naming
        )
        self._bound = naming | self._known
        for name in ("typed", "timed", "small", "bound", "mark"):
            self._bound |= masks[name]
        self._first = next((one.name for one in params if one.role in _PLAIN and not one.choices), "")
        self._kept = taken | mask_of(at for one in part.found if one.kind is Kind.QUOTED for at in one.places)

    def of(self, param: Param) -> Iterator[Option]:
        """The values that a param may take."""
        part = self.part
        if param.role == "secret" or param.name == "delegation_path":  # which is the plan's own
            return
        if param.role == "request" and param.required:  # The verb still says which tool is meant.
            told = {"request": 1.0, "request.crossed": float(part.masks["turning"].bit_count())}
            whole = self._option(part.text, Evidence.REQUEST, told, part.first, part.stop - 1)
            yield replace(whole, mask=whole.mask & ~(1 << part.verb_at) if part.verb else whole.mask)
            return
        sure = [*self._choices(param), *(() if param.closed else self._typed(param))]
        yield from sure
        yield from self._lists(param, sure) if param.array or param.required else ()
        if param.type == "boolean":
            yield from self._switches(param)
        if (
            param.role in _PLAIN
            and stem("pointer") not in param.words
            and not param.choices
            and param.type in ("string", "")
        ):
            yield from self._cut(param)

    def _option(self, value: Any, evidence: Evidence, told: Mapping[str, float], first: int, last: int) -> Option:
        return Option(value, evidence, told, stretch(first, last), self.part.words(first, last), first, last)

    def _choices(self, param: Param) -> Iterator[Option]:
        part = self.part
        for choice, value in param.choices.items():
            wanted = choice.split() or [choice]
            for size, place in product({1, len(wanted)}, range(part.first, part.stop)):
                low, last = part.low(place), place + size - 1
                if last >= part.stop:
                    continue
                if low in GROUPS["article"] and not (place > part.first and part.reading.tokens[place].text == "A"):
                    continue
                if part.masks["typed"] & stretch(place, last):
                    how = float(normal(part.words(place, last).strip("'\"`")) == choice)
                else:
                    hows = (near(part.stems[place + step], wanted[step]) for step in range(size))
                    how = min(hows) if size == len(wanted) else 0.0
                if not how or (how < 1 and (size > 1 or low in SMALL)):
                    continue
                told = {"e.exact" if how == 1 else "e.like": 1.0} | self._cues(param, place, last, "e")
                if place == part.verb_at:  # "Close the ticket" asks for an act.
                    told["e.acts" if how == 1 else "e.acts_like"] = 1.0
                    told["e.acts_on"] = float(part.low(place + 1) in GROUPS["article"])
                if how < 1 and self.profile.vocabulary.get(part.stems[place], 0.0) >= FIRM:
                    told["e.own_like"] = 1.0
                yield self._option([value] if param.array else value, Evidence.CHOICE, told, place, last)

    def _switches(self, param: Param) -> Iterator[Option]:
        """A flag that is named is set; one that is named and negated is not: "without telling the attendees"."""
        part = self.part
        key = [word for word in param.words if word not in _UNTOLD]
        for place in (at for at in part.stems if not part.masks["typed"] >> at & 1):
            low = part.low(place)
            if low in _SWITCHES and (param.required or not key):
                yield self._option(_SWITCHES[low], Evidence.CHOICE, {"s.on": 1.0}, place, place)
            ahead = [part.stems[at] for at in range(place, min(part.stop, place + len(key) + 2))]
            begins = max((near(ahead[0], word) for word in key), default=0.0)
            if not begins or (begins < 1 and (low in SMALL or place == part.verb_at or ahead[0] in self.profile.nouns)):
                continue
            hows = [how for word in key if (how := max(near(one, word) for one in ahead))]
            negated, sure = self._negation(place, param)
            whole = len(hows) == len(key) and min(hows) == 1 and ahead[0] == key[0]
            last = min(place + len(key) - 1 if whole else place, part.stop - 1)
            told = {"s": 1.0, "s.unlike": 1 - min(hows), "s.lacking": 1 - len(hows) / len(key)}
            evidence = Evidence.CHOICE if sure else Evidence.CUT
            yield self._option(not negated, evidence, told, min([place, *negated]), last)

    def _negation(self, place: int, param: Param) -> tuple[list[int], bool]:
        """The places of what says that a flag is not wanted, and whether it is sure: it stands in the flag's own clause."""
        part, sure, skips = self.part, True, not _SKIPPING.isdisjoint(param.words)
        for at in range(place - 1, max(part.first, place - _NEGATED) - 1, -1):
            low, stemmed = part.low(at), part.stems.get(at, "")
            if low in GROUPS["negation"] and part.low(at + 1) != "forget":
                negates = not (skips and low in ("no", "without"))  # "no drafts" is what hide_drafts says
            else:
                is_others = stemmed in self._owners or at == part.verb_at
                negates = sure and not skips and not is_others and stemmed in _SKIPPING
            if negates:
                return ([at - 1, at] if part.low(at - 1) == "but" else [at]), sure
            if low == "but":
                break
            sure = sure and low != "and" and low not in MARKS and (stemmed in param.own or stemmed not in self._owners)
        return [], True

    def _typed(self, param: Param) -> Iterator[Option]:
        for found in self.part.found:
            how, mask = fits(param, found), mask_of(found.places)
            is_folder = found.kind in (Kind.PATH, Kind.QUOTED) and "/" in found.value and "." not in found.value
            if param.array and is_folder and "file" in param.words:
                how *= _UNSUITED / 2  # a folder is no list of files
            is_number = found.kind in (Kind.INTEGER, Kind.NUMBER) and not (found.unit and param.role == "money")
            first, last = min(found.places), max(found.places)
            is_compared = is_number and self.part.low(self.part.before(first)) in _COMPARING
            is_measure = (is_compared or (found.kind in NUMERIC and found.unit)) and not param.unit
            if not how or mask & self._taken or (is_measure and param.role in ("knob", "id")):
                continue
            sort, role = "n" if is_number else "t", _PLAIN.get(param.role, param.role if is_number else "form")
            told = {f"{sort}.{role}": 1.0, f"{sort}.misfit": 1 - how} | self._cues(param, first, last, sort, found.kind)
            if found.kind is Kind.QUOTED:
                told[f"t.quoted.{role}"] = 1.0
            sorts = self.library.sorts(str(found.value)) if found.kind in (Kind.ID, Kind.SLUG) else frozenset()
            if sorts and role not in ("text", "query"):  # `msg-774` is no event
                told["sort.other" if sorts.isdisjoint(sort_of(param, self.profile.nouns)) else "sort.own"] = 1.0
            if param.role == "id" and param.type != "integer":
                said = str(found.value).lower()
                unlike = {"id.plain": said.isascii() and not any(map(str.isdigit, said))}
                unlike["id.other"] = bool(param.prefixes) and not said.startswith(tuple(map(str.lower, param.prefixes)))
                told |= {name: 1.0 for name, is_so in unlike.items() if is_so}
                how *= _UNSUITED if any(unlike.values()) else 1.0
            evidence = Evidence.QUOTED if found.kind is Kind.QUOTED else Evidence.TYPED
            side = "" if not found.role else "first" if found.role in ("start", "left") else "second"
            option = self._option(coerced(param, found), evidence, told, first, last)
            yield replace(option, mask=mask, kind=found.kind, fit=how, side=side)

    def _lists(self, param: Param, several: Sequence[Option]) -> Iterator[Option]:
        """Values of one kind side by side, as one list, or each for a call of its own: "L-701, L-702 and L-703"."""
        is_list = any(other.array for other in self.profile.params)
        run: list[Option] = []
        for option in sorted(several, key=lambda one: (one.first, -one.last)):
            if run and option.first <= run[-1].last:
                continue
            between = {self.part.low(place) for place in range(run[-1].last + 1, option.first)} if run else set()
            is_row = bool(between) and between <= _ROW and not (option.side or is_list) and option.kind not in WHENS
            run = [*run, option] if run and option.kind == run[-1].kind and (param.array or is_row) else [option]
            if len(run) > 1:
                values = [item for one in run for item in (one.value if isinstance(one.value, list) else [one.value])]
                told = {**run[0].told, "listed" if param.array else "each": len(run) - 1.0}
                value = values if param.array else Each(tuple(values))
                found = self._option(value, run[0].evidence, told, run[0].first, option.last)
                yield replace(found, mask=mask_of(at for one in run for at in bits(one.mask)), kind=option.kind)

    # Words cut out of the part

    def _cut(self, param: Param) -> Iterator[Option]:
        part, sort, own, found = self.part, _PLAIN[param.role], param.own, []
        for first, last in self._spans(_LONGEST["text" if param.array else sort]):
            if (first, last, sort) not in self.part.shapes:
                shape = _shape(self.part, first, last, sort)
                self.part.shapes[first, last, sort] = shape, weighed(shape)
            shape, gain = self.part.shapes[first, last, sort]
            if not shape:
                continue
            whole = stretch(first, last)
            known = (whole & self._known).bit_count()
            facts = {
                f"c.named_inside.{sort}": whole & self._owned > 0,
                f"c.known.{sort}": known,
                f"c.own.{sort}": 0 < known == shape["wordy"],
                f"c.noun.{sort}": (whole & self._nouns).bit_count(),
                f"c.head.{sort}": whole & -whole & (self._owned | self._nouns) > 0,
                f"c.head.own.{sort}": self.part.stems[first] in own,
                f"c.tail.{sort}": self.part.stems[last] in own,
                f"c.direct.{sort}": part.before(first) == part.verb_at >= 0,
                f"c.said.{sort}": shape["wordy"] * (part.low(first - 1) in SAYING),
                "c.named_after": self.part.stems.get(last + 1, "") in own,
                "c.later": param.name != self._first,
            }
            told = {name: float(fact) for name, fact in facts.items() if fact}
            told |= {f"c.{param.role}": 1.0} | self._cues(param, first, last, "c")
            found.append((gain + weighed(told) + _COVERED * (last - first + 1), first, last, told | shape))
        for _, first, last, told in sorted(found, key=lambda one: -one[0])[:_MOST]:
            text = self.part.words(first, last)
            text = text if sort == "text" else re.sub(r"['’]s$", "", text)
            if sort == "text" and part.low(first - 1) == ":" and last + 1 == part.stop:
                text += "".join(one.text for one in part.reading.tokens[last + 1 : last + 2] if one.text in "!?")
            option = self._option(_items(text) if param.array else text, Evidence.CUT, told, first, last)
            head, _, rest = text.partition(" ")
            is_half = not _NAMED_HALF.isdisjoint(param.words)
            if is_half and (rest.count(" ") > 1 or not _TITLES.isdisjoint(text.lower().replace(".", "").split())):
                continue
            if is_half and rest:
                one, side = (head, "first") if param.side == "left" else (rest, "second")
                # The second half costs nothing: the first one has paid for the words.
                paid = {"c.half": 1.0} if side == "second" and option.is_proper else told
                option = replace(option, value=one, text=one, side=side, told=paid)
            yield option

    def _spans(self, longest: int) -> Iterator[tuple[int, int]]:
        """Stretches of words that could be a value: between small words, punctuation and words that the tool explains."""
        part, bound, proper = self.part, self._bound, self.part.masks["proper"]
        places = stretch(part.first, part.stop - 1) & ~part.masks["mark"]
        lasts = places & (bound >> 1 | 1 << (part.stop - 1) | proper & ~(proper >> 1))
        for first in bits(places & (bound << 1 | 1 << part.first | proper & ~(proper << 1))):
            for last in bits(lasts & stretch(first, first + longest - 1)):
                whole = stretch(first, last)
                if not whole & self._kept and not (first == last and part.masks["typed"] & whole):
                    yield first, last

    def _cues(self, param: Param, first: int, last: int, sort: str, kind: Kind | None = None) -> dict[str, float]:
        """What the words around a value say of whether it is this param's."""
        part, own = self.part, param.own
        at = first - 1 if part.low(first - 1) in SAYING else part.before(first)
        low, stemmed = part.low(at), part.stems.get(at, "")
        is_small = low in SMALL or low in MARKS or low in BOUNDS
        told = ""
        if low in SAYING:
            told = f"saying.{sort}" + ("" if param.role == "text" else ".other")
        elif is_small and low in param.cues:
            told = f"{sort}.cue"
        elif is_small:
            told = f"{sort}.preposition" if low in GROUPS["preposition"] else f"{sort}.small" if low in SMALL else ""
        elif low and not (at == part.verb_at and stemmed not in own - {self.profile.verb}):
            is_unknown = self.explained[at] < FIRM and stemmed not in param.cues
            whose = (
                "named" if stemmed in own else "other" if stemmed in self._owners else "unknown" if is_unknown else ""
            )
            told = whose and f"{sort}.{whose}"
        found = [told]
        if sort in "nt" and at == first - 1 > part.first and part.masks["proper"] >> at & 1:
            found.append(f"{sort}.apposed")
        elsewhere = self._spoken[param.name] & ~stretch(first, last)
        if elsewhere:
            found.append(f"{sort}.spoken")
        back = part.stems.get(part.before(at), "") if low in SMALL or low in MARKS else ""
        if back in self._owners:
            found.append(f"{sort}.{'named' if back in own else 'other'}_{'of' if low == 'of' else 'before'}")
        if param.role in _PLAIN and low in (",", ":", "of"):
            found.append(f"{sort}.{low}.{'first' if param.name == self._first else 'later'}")
        after = part.stems.get(last + 1, "") if sort != "c" else ""
        if after in own:
            found.append(f"{sort}.named_after")
        found.append(self._sided(param, at, kind))
        return {name: 1.0 for name in found if name}

    def _sided(self, param: Param, at: int, kind: Kind | None) -> str:
        """What "from" and "to" say of a param that is where something begins or ends."""
        part, low = self.part, self.part.low(at)
        if low not in _FROM and low not in _TO and (self._owned | self._nouns) >> max(at, 0) & 1:
            low = part.low(part.before(at))  # "from tank 3"
        side = next((side for side, words in _ENDS.items() if not words.isdisjoint(param.words)), param.side)
        is_pair = kind in (Kind.CURRENCY, Kind.UNIT, Kind.LANGUAGE) and kind in param.kinds
        if side not in ("start", "end") or not low:
            return ""
        if low not in _FROM and low not in _TO and not (is_pair and part.masks["typed"] >> at & 1):
            return ""
        return "side" if (low in _TO) == (side == "end") else "side.other"


def _shape(part: Part, first: int, last: int, sort: str) -> dict[str, float]:
    """What a stretch of words is like, whatever the tool; nothing: it is no value at all."""
    masks = part.masks
    whole, head, tail = stretch(first, last), 1 << first, 1 << last
    small, proper = masks["small"], masks["proper"]
    content = (whole & masks["content"] & ~masks["typed"]).bit_count()
    if part.low(first) in _TURNING and part.low(first - 1) not in SAYING:
        return {}
    if sort != "text":
        if any(part.low(at) in SAYING - {":", "that"} for at in range(first + 1, last + 1)):
            return {}
        is_name = first > part.first and head & proper and tail & proper
        is_held = part.low(first) in HELD or (sort in ("name", "code") and whole & masks["unplanned"])
        acts = first <= part.verb_at <= last and not masks["content"] & (1 << part.verb_at) - 1
        if not content or is_held or acts or not (is_name or not (head | tail) & small):
            return {}
    typed = (whole & masks["typed"]).bit_count()
    capitals = (whole & proper & ~small & ~(1 << part.first)).bit_count()
    if typed and capitals and (part.low(last)[0].isdigit() or part.low(first)[0].isdigit()):  # Hall 7, 12 Elm Road
        typed -= 1
    wordy = (whole & ~small & ~masks["mark"]).bit_count()
    inner = (whole & masks["foreign"] & ~proper).bit_count() if head & proper and tail & proper else 0  # Gare du Nord
    shape = {
        "words": content,
        "many": max(0, content - 2),
        "typed": typed,
        "inner": (whole & masks["bound"]).bit_count(),
        "held": whole & masks["unplanned"] > 0,
        "crossed": (whole & ~head & masks["turning"]).bit_count(),
        "proper": 0 < capitals >= wordy - (first == part.first) - inner,
        "preposed": part.low(first) in GROUPS["preposition"],
        "article": part.low(first) in GROUPS["article"],
        "upper": first == last and len(part.low(first)) > 1 and part.reading.tokens[first].text.isupper(),
        "short": (first - 1 > part.first and head & proper and head >> 1 & proper > 0)
        + (tail & proper & proper >> 1 > 0),
        "empty": not content,
        "whole": last + 1 == part.stop,
        "acts": first <= part.verb_at <= last,
    }
    return {"wordy": wordy} | {f"c.{name}.{sort}": float(value) for name, value in shape.items() if value}


def _items(text: str) -> list[str]:
    """The items of a list in words."""
    return [
        re.sub(r"^(?:the|an?) ", "", item.strip()) for item in text.replace(" and ", ",").split(",") if item.strip()
    ]
