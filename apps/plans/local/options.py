# ruff: noqa: RUF001 - people type these marks
"""The values that a part of a request has for a param: its choices, typed values, and words cut out of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from apps.plans.local.index import Library, Profile, sort_of
from apps.plans.local.params import UNNAMING, Param, coerced, fits
from apps.plans.local.parts import BOUNDS, DETERMINERS, HELD, PUNCTUATION, Part, mask_of, stretch
from apps.plans.local.tokens import Found, Kind
from apps.plans.local.words import GROUPS, SMALL, UNPLANNED, near, stem
from apps.plans.proposals import Evidence

FIRM: Final = 0.6
"""A word counts as explained from this certainty on; below it, it is a weak trace."""
_MOST: Final = 8
_CHOICE: Final = 1.9
_LIKE_CHOICE: Final = 1.0
_TYPED_FIT: Final = 3.0
_TYPED_COST: Final = 1.2
_OWN_NOUN: Final = 0.6
_PROPER: Final = 0.4
_SIDE: Final = 1.4
_TOLD: Final = 0.6
_TOLD_OF_CUT: Final = 0.2
_BY_NOUN: Final = 1.2
_BY_LIKE: Final = 1.4
_BY_NAME: Final = 2.4
_PREPOSED: Final = 0.4
_CUE_WORD: Final = 0.9
_LONGEST_SPAN: Final = 25
_LEAST_OF_OPTIONAL: Final = 0.9
_LEAST_CUE_OF_OPTIONAL: Final = 0.3
_LEAST_CUE_OF_LIST: Final = 0.8
_LONGEST_NAME: Final = 8
_PLAINLY: Final = 0.8
_CALLED: Final = 2.0
_UNANNOUNCED: Final = 0.8
"""What each word from the third on costs in a value that nothing announces."""
_FEW: Final = 2
_LEAST_OF_CUT: Final = -0.5
_NO_END: Final = GROUPS["time"] | {"it", "them", "instead", "back", "straight"}
_PREPOSITIONS: Final = GROUPS["preposition"]
_NAMING: Final = frozenset({"called", "named", "titled", "entitled", "labelled", "labeled"})
_SAYING: Final = frozenset({"saying", "says", "say", "that", "reading", ":", "telling", "because"})
_WHENS: Final = frozenset({Kind.DATE, Kind.DATETIME, Kind.TIME, Kind.PERIOD, Kind.DURATION})
_CLAUSES: Final = GROUPS["be"] | GROUPS["have"] | GROUPS["modal"] | {":", ";", "–", "—", "?", "!", "(", ")", "when"}
_ABOUT: Final = frozenset({"about", "regarding", "concerning", "containing", "mentioning", "matching"})
_FROM: Final = frozenset({"from", "between", "since", "starting", "after"})
_TO: Final = frozenset({"to", "until", "till", "into", "through", "before"})
_TO_MEASURE: Final = _TO | {"in", "as"}
_MEASURES: Final = (Kind.CURRENCY, Kind.UNIT, Kind.LANGUAGE)
_ENDS: Final = {
    "start": frozenset(map(stem, ("source", "src", "from", "old", "origin", "sender"))),
    "end": frozenset(map(stem, ("destination", "dest", "target", "to", "new", "recipient"))),
}
_ON: Final = frozenset({"on", "enable", "enabled", "activate", "activated", "true", "yes"})
_OFF: Final = frozenset({"off", "disable", "disabled", "deactivate", "deactivated", "false", "no"})
_NUMBERS: Final = (Kind.INTEGER, Kind.NUMBER)
_ROW: Final = frozenset({"and", "&", ","})
FREE: Final = frozenset({"text", "query", "name", "other"})
"""Roles whose values may be of several words."""
_PLAIN: Final[Mapping[str, float]] = {
    "text": 0.2,
    "query": 0.3,
    "name": 0.2,
    "other": 0.0,
    "slug": -0.2,
    "user": 0.0,
    "channel": -0.2,
    "repo": -0.5,
    "color": -0.2,
    "id": -0.8,
    "path": -1.0,
    "version": -0.8,
}
"""For each role that plain words may serve, how well they do."""
_POINTER: Final = stem("pointer")
_RIGID: Final = frozenset(
    (
        Kind.CURRENCY,
        Kind.UNIT,
        Kind.DURATION,
        Kind.MONEY,
        Kind.QUANTITY,
        Kind.DATE,
        Kind.TIME,
        Kind.DATETIME,
        Kind.PERIOD,
    )
)
"""Kinds whose values are hardly ever a name or an id."""
_COMPARING: Final = frozenset({"over", "under", "above", "below", "than", "least", "beyond", "exceeding"})
_UNSUITED: Final = 0.4
_OF_SORT: Final = 1.5
"""What it counts for an id that its letters say what it is of."""
_NEGATING: Final = GROUPS["negation"] | {"non"}
_SAME_ROOT: Final = 0.8
_SYNONYM: Final = 0.75
_UNTOLD: Final = frozenset({"is", "has", "includ", "enabl", "onli", "on", "activ"})


@dataclass(frozen=True, slots=True)
class Option:
    """A value that a param may take."""

    value: Any
    evidence: Evidence
    gain: float
    mask: int = 0
    """The tokens that it takes."""
    text: str = ""
    first: int = -1
    last: int = -1
    kind: Kind | None = None
    cued: float = 0.0
    """How plainly the words around it announce it."""
    fit: float = 1.0
    """How well its kind is the param's."""
    side: str = ""
    """`first` or `second` of a range or a pair, which may stand on the same tokens as the other."""


@dataclass(frozen=True, slots=True)
class Each:
    """Values of a param that takes one: the tool is called for each of them."""

    values: tuple[Any, ...]


class Options:
    """The options of one part for the params of one tool."""

    def __init__(
        self,
        part: Part,
        profile: Profile,
        library: Library,
        context: Mapping[str, Any],
        beside: tuple[Profile, int, bool] | None = None,
    ) -> None:
        """Prepare the options.

        :param beside: another tool that the part speaks of, and the tokens of its values.
        """
        self.part, self.profile, self.library, self.context = part, profile, library, context
        self._taken = beside[1] if beside else 0
        self._looks_up = beside is not None and beside[2] and not profile.tool.required
        tools = (profile, beside[0]) if beside else (profile,)
        self.explained = {
            place: 0.0 if part.typed >> place & 1 else max(one.explains(stemmed) for one in tools)
            for place, stemmed in part.stems.items()
        }
        self._is_free = not any(one.required and one.role in _PLAIN for one in profile.params)
        self._has_unit = any("unit" in one.words for one in profile.params)
        self._spans: list[tuple[int, int]] | None = None
        self.timed = 0
        for one in part.found:
            self.timed |= mask_of(one) if one.kind in _WHENS else 0

    def of(self, param: Param, offered: Sequence[Option]) -> list[Option]:
        """The likeliest values of a param, best first."""
        part = self.part
        if param.name in self.context:
            value = self.context[param.name]
            said = sum(1 << one.place for one in part.tokens if one.text == value)
            # A value for a param that need not be given speaks for no tool.
            return [Option(value, Evidence.CONTEXT, 3.0 if param.required or said else 0.5, said, param.name)]
        if param.role == "secret" or param.name == "delegation_path":  # which is the plan's own
            return []
        if param.role == "request" and param.required:
            whole = self._option(part.text, Evidence.REQUEST, 1.0, (part.first, part.stop - 1))
            # The verb still says which tool is meant.
            return [replace(whole, mask=whole.mask & ~(1 << part.verb_at)) if part.verb else whole]
        found = [*offered, *self._choices(param)]
        if param.type == "boolean":
            found += self._switches(param)
        elif not param.closed:
            typed = list(self._typed(param))
            found += [*typed, *(self._lists(param, typed) if param.array or param.required else ())]
        is_cut = param.role in _PLAIN and _POINTER not in param.words and not self.library.finds(param)
        if is_cut and not param.choices and param.type in ("string", ""):
            found += self._cut(param)
        found.sort(key=lambda one: -(one.gain + 0.15 * one.mask.bit_count()))
        return found[:_MOST]

    def _option(self, value: Any, evidence: Evidence, gain: float, place: tuple[int, int], cued: float = 0.0) -> Option:
        first, last = place
        text = self.part.words(first, last)
        return Option(value, evidence, gain, stretch(first, last), text, first, last, None, cued)

    def _choices(self, param: Param) -> Iterator[Option]:
        part = self.part
        for choice, value in param.choices.items():
            wanted = choice.split() or [choice]
            size = len(wanted)
            for place in range(part.first, part.stop - size + 1):
                how = min(near(part.stems[place + step], wanted[step]) for step in range(size))
                low = part.low(place)
                if low in GROUPS["article"]:
                    continue
                if how < 1 and (not how or size > 1 or low in SMALL):
                    continue
                if place == part.verb_at and (how < 1 or part.low(place + 1) in DETERMINERS):
                    continue
                if how < 1 and part.stems[place] in (*self.profile.nouns, self.profile.verb):
                    continue
                if part.typed >> place & 1 and low.strip("'\"`") != " ".join(wanted):
                    continue
                gain = _CHOICE if how == 1 else _LIKE_CHOICE
                gain += self._sided(param, part.low(part.before(place)), part.before(place), None)
                yield self._option(value, Evidence.CHOICE, gain, (place, place + size - 1))

    def _switches(self, param: Param) -> Iterator[Option]:
        """A flag that is named is set; one that is named and negated is not: "without telling the attendees"."""
        part = self.part
        key = [word for word in param.words if word not in _UNTOLD]
        for place in range(part.first, part.stop) if key else ():
            if part.typed >> place & 1:
                continue
            ahead = [part.stems[at] for at in range(place, min(part.stop, place + len(key) + 2))]
            how = min(
                [near(ahead[0], key[0]), *(max(near(one, word) for one in ahead[1:] or [""]) for word in key[1:])]
            )
            negated = [at for at in range(max(part.first, place - 2), place) if part.low(at) in _NEGATING]
            if how < (_SAME_ROOT if not negated else _SYNONYM):
                continue
            last = min(place + len(key) - 1 if how == 1 else place, part.stop - 1)
            yield self._option(not negated, Evidence.CHOICE, 2.6, (min([place, *negated]), last))
            return
        for token in part.tokens if param.required or not key else ():
            if (token.low in _ON or token.low in _OFF) and not part.typed >> token.place & 1:
                yield self._option(token.low in _ON, Evidence.CHOICE, 1.6, (token.place, token.place))

    def _typed(self, param: Param) -> Iterator[Option]:
        for found in self.part.found:
            how = self._fit(param, found)
            if not how or mask_of(found) & self._taken:
                continue
            if how <= _UNSUITED and found.kind in _RIGID and param.role not in ("text", "query"):
                continue
            first, last = min(found.places), max(found.places)
            cued = self.cue(param, first, last, found.kind)
            if found.kind in _NUMBERS and param.role == "other" and param.type == "string" and cued < _BY_NOUN:
                continue
            gain = (how if found.kind in _NUMBERS else _TYPED_FIT * how - _TYPED_COST) + cued
            gain += self._sort(param, found)
            if found.role:
                gain += self._of_range(param, found)
            if param.array:
                gain -= 0.3
            if param.role in ("knob", "id") and (found.unit or self.part.low(self.part.before(first)) in _COMPARING):
                gain -= 2.0
            if gain < _LEAST_OF_OPTIONAL and not param.required:
                continue
            evidence = Evidence.QUOTED if found.kind == Kind.QUOTED else Evidence.TYPED
            option = self._option(coerced(param, found), evidence, gain, (first, last), cued)
            mask = mask_of(found)
            side = "" if not found.role else "first" if found.role in ("start", "left") else "second"
            yield replace(option, mask=mask, kind=found.kind, fit=how, side=side)

    def _fit(self, param: Param, found: Found) -> float:
        """How well a value serves a param. A number that another param takes the unit of is as good as one without."""
        how = fits(param, found)
        if param.array and found.kind is Kind.PATH and "file" in param.words and "." not in found.value.split("/")[-1]:
            return how * _UNSUITED  # a folder is no list of files
        is_count = param.role == "number" and not param.unit and found.kind in _NUMBERS
        return 1.0 if how and is_count and self._has_unit else how

    def _of_range(self, param: Param, found: Found) -> float:
        """What it counts that a value is an end of a range. Less, where the tool takes no other value of its kind."""
        if param.side != found.role:
            return -1.5 if param.side else -0.8
        is_date = found.kind in (Kind.DATE, Kind.DATETIME)
        return (
            1.0
            if not is_date or any(found.kind in one.kinds for one in self.profile.params if one is not param)
            else -1.0
        )

    def _sort(self, param: Param, found: Found) -> float:
        """How well the letters of an id say that it is one of the param's: `msg-774` is no event."""
        sorts = self.library.sorts(str(found.value)) if found.kind in (Kind.ID, Kind.SLUG) else frozenset()
        own = sort_of(param, self.profile.nouns)
        if not sorts or param.role in ("text", "query"):
            return 0.0
        if own not in sorts:
            return -_OF_SORT
        return 0.0 if param.role in FREE else _OF_SORT

    def _lists(self, param: Param, several: Sequence[Option]) -> Iterator[Option]:
        """Values of one kind side by side, as one list, or each for a call of its own."""
        run: list[Option] = []
        for option in sorted(several, key=lambda one: one.first):
            if run and (option.kind != run[-1].kind or not (param.array or self._is_joined(run[-1], option))):
                run = []
            run.append(option)
            if len(run) > 1:
                values = [item for one in run for item in (one.value if isinstance(one.value, list) else [one.value])]
                mask = 0
                for one in run:
                    mask |= one.mask
                text = self.part.words(run[0].first, option.last)
                gain = run[0].gain + 1.8 * (len(run) - 1)
                value = values if param.array else Each(tuple(values))
                yield replace(run[0], value=value, mask=mask, gain=gain, last=option.last, text=text)

    def _is_joined(self, one: Option, other: Option) -> bool:
        """Do two values stand in a row of equals: "L-701, L-702 and L-703"?"""
        between = {self.part.low(place) for place in range(one.last + 1, other.first)}
        is_list = any(param.array and one.kind in param.kinds for param in self.profile.params)
        return bool(between) and between <= _ROW and not (one.side or is_list) and one.kind not in _RIGID

    # Words cut out of the part

    def _cut(self, param: Param) -> Iterator[Option]:
        longest = _LONGEST_SPAN if param.role in ("text", "query") else _LONGEST_NAME if param.role in FREE else 2
        for first, last in self.spans():
            if last >= first + longest and not param.array:
                continue
            is_empty = not stretch(first, last) & self.part.content & ~self.part.typed
            if first in self.part.turns or is_empty or (param.role != "text" and self._is_no_name(param, first, last)):
                continue
            cued = self.cue(param, first, last, None)
            if cued < _CALLED and self._is_own(first, last):
                continue
            gain = _PLAIN[param.role] + self._span_fit(param, first, last) + cued
            if cued < _PLAINLY:
                words = (stretch(first, last) & self.part.content).bit_count()
                gain -= _UNANNOUNCED * max(0, words - _FEW)
            least = _LEAST_CUE_OF_LIST if param.array else _LEAST_CUE_OF_OPTIONAL
            needed = param.required or (self._looks_up and param.role in ("query", "name"))
            if gain > _LEAST_OF_CUT and (needed or cued >= least):
                text = self.part.words(first, last)
                text = text if param.role in ("text", "query") else re.sub(r"['’]s$", "", text)
                yield self._option(_listed(text) if param.array else text, Evidence.CUT, gain, (first, last), cued)

    def _is_no_name(self, param: Param, first: int, last: int) -> bool:
        """Are these words a date, a clause, or what another part may begin with: "thursday", "dkim have been merged", "Ghent: when"?"""
        part = self.part
        places, word = range(first, last + 1), part.reading.tokens[first]
        others = {stemmed for one in self.profile.params if one is not param for stemmed in one.words} - {*param.words}
        if any(part.first < place and first <= place <= last for place in part.turns):
            return True
        if param.role == "query":
            return any(part.low(place) in _ABOUT for place in places)
        return (
            (param.role == "id" and word.text.isalpha() and word.text.islower())
            or any(part.low(place) in UNPLANNED for place in places)
            or (last > first and any(part.stems[place] in others for place in places))
            or bool(stretch(first, last) & self.timed)
            or any(part.low(place) in _CLAUSES for place in places)
        )

    def _is_own(self, first: int, last: int) -> bool:
        """Are these words the tool's own, or of its choices?"""
        chosen = {word for one in self.profile.params for choice in one.choices for word in choice.split()}
        return all(
            self.explained[place] >= FIRM or self.part.stems[place] in chosen
            for place in range(first, last + 1)
            if self.part.low(place) not in SMALL
        )

    def spans(self) -> list[tuple[int, int]]:
        """Stretches of words that could be a value: between small words, punctuation and words that the tool explains."""
        if self._spans is None:
            part = self.part
            bound = 0
            for place, sure in self.explained.items():
                low = part.low(place)
                edge = sure >= FIRM or place == part.verb_at or (part.typed | self.timed) >> place & 1
                if (
                    edge
                    or low in BOUNDS
                    or low in PUNCTUATION
                    or low in SMALL
                    or part.stems[place] in self.profile.naming
                ):
                    bound |= 1 << place
            for place in range(part.first + 1, part.stop):
                beside = self._is_proper(place + 1) or (place - 1 > part.first and self._is_proper(place - 1))
                if self._is_proper(place) and beside and not part.typed >> place & 1:
                    bound &= ~(1 << place)
            starts = [place for place in range(part.first, part.stop) if self._may_begin(place, bound)]
            ends = [
                place
                for place in range(part.first, part.stop)
                if place + 1 == part.stop
                or bound >> (place + 1) & 1
                or self._is_proper(place) > self._is_proper(place + 1)
            ]
            lasts = sorted({self._without_marks(part.first, end) for end in ends})
            found = {
                (first, last)
                for first in starts
                for last in lasts
                if first <= last < first + _LONGEST_SPAN
                and not stretch(first, last) & self._taken
                and self._may_end(first, last)
            }
            self._spans = sorted(found)
        return self._spans

    def _is_said(self, first: int) -> bool:
        return self.part.low(first - 1) in _SAYING

    def _may_begin(self, first: int, bound: int) -> bool:
        part, low = self.part, self.part.low(first)
        if first == part.first:
            if part.question or first == part.verb_at or self.explained[first] >= FIRM:
                return False
        elif not bound >> (first - 1) & 1 and self._is_proper(first) <= self._is_proper(first - 1):
            return False
        is_name = first > part.first and self._is_proper(first) and self._is_proper(first + 1)
        is_verb = first == part.verb_at and not part.content & ((1 << first) - 1)
        is_small = low in SMALL and low not in GROUPS["article"] and not self._is_said(first)
        if is_verb or is_small or low in PUNCTUATION or low in HELD:
            return False
        if low in GROUPS["article"]:
            return self._is_said(first)
        return is_name or low not in BOUNDS

    def _is_proper(self, place: int) -> bool:
        """Is it a word with a capital, as names have?"""
        part = self.part
        if not part.first <= place < part.stop:
            return False
        return part.reading.tokens[place].text[0].isupper()

    def _without_marks(self, first: int, last: int) -> int:
        while last > first and self.part.low(last) in PUNCTUATION:
            last -= 1
        return last

    def _may_end(self, first: int, last: int) -> bool:
        part, low = self.part, self.part.low(last)
        if low in PUNCTUATION or (first == last and (part.typed >> first & 1 or low in SMALL)):
            return False
        if low in BOUNDS or low in DETERMINERS or low in GROUPS["polite"] or low in _NO_END:
            return self._is_said(first) and last + 1 == part.stop
        return True

    def _span_fit(self, param: Param, first: int, last: int) -> float:
        """How well a stretch of words suits the role of a param, whatever stands around it."""
        part, tokens = self.part, self.part.reading.tokens[first : last + 1]
        long, query, size = param.role == "text", param.role == "query", last - first + 1
        content = [one for one in tokens if one.low not in SMALL]
        inner = sum(one.low in BOUNDS or one.low in PUNCTUATION for one in tokens)
        typed = (stretch(first, last) & part.typed).bit_count()
        if param.role in ("name", "other") and any(one.text[0].isupper() for one in tokens):
            typed -= sum(one.text[0].isdigit() for one in tokens)
        crossed = sum(first <= place <= last for place in part.turns)
        flags = {word for one in self.profile.params if one.type == "boolean" for word in one.words}
        crossed += size > 1 and query and part.stems[first] in flags - {*param.words}
        crossed += size > 1 and not long and tokens[0].text.islower() and part.stems[first] in param.cues
        score = (0.0 if content else -1.0) - 1.2 * crossed
        if long:
            score += 0.1 * min(size, 8) - 0.7 * typed - (len(content) < 2) * 0.3  # noqa: PLR2004  # a sentence has more
        elif query:
            score += 0.05 * size - 0.2 * inner - 0.7 * typed
        elif param.array:
            score -= 1.5 * typed
        else:
            score -= 0.8 * inner + 0.25 * max(0, size - 3) + 1.5 * typed
        if param.role == "name" and sum(one.text[:1].isupper() for one in tokens if one.place != part.first) >= max(
            1, len(content)
        ):
            score += _PROPER
        if param.role in ("id", "version") and size == 1 and not tokens[0].text.islower():
            score += 0.6
        for one in content if not long else ():
            stemmed = part.stems[one.place]
            score -= _OWN_NOUN if stemmed in self.profile.nouns else 0.0
        return score

    # What announces a value

    def cue(self, param: Param, first: int, last: int, kind: Kind | None) -> float:
        """How plainly the words around a value say that it is this param's."""
        part, profile = self.part, self.profile
        own = [word for word in param.words if word not in UNNAMING] or list(param.words)
        place = first - 1 if part.low(first - 1) in _SAYING else part.before(first)
        low, stemmed = part.low(place), part.stems.get(place, "")
        if low in SMALL or low in PUNCTUATION:
            score = self._introduced(param, low, kind)
        else:
            own_verb = place == part.verb_at and stemmed == profile.verb
            score = 0.0 if own_verb else self._by_word(param, stemmed, own, kind)
        score += self._sided(param, low, place, kind)
        after = part.stems.get(last + 1, "")
        if after in own and not part.low(last).endswith("ing"):
            score += 1.0
        elif kind is None and after in profile.nouns:
            score += 0.4
        if place == part.verb_at >= 0 and kind in (None, Kind.QUOTED) and (param.required or self._is_free):
            score += 0.8 if param is profile.params[0] else 0.5
        return score

    def _sided(self, param: Param, low: str, place: int, kind: Kind | None) -> float:
        """What "from" and "to" say of a param that is where something begins or ends."""
        side = next((side for side, words in _ENDS.items() if words & set(param.words)), param.side)
        if side not in ("start", "end") or not low:
            return 0.0
        if kind in _MEASURES and kind in param.kinds and (self.part.typed >> place & 1 or low in _TO_MEASURE):
            return 1.4 if (low in _TO_MEASURE) == (side == "end") else -1.6
        mine, other = (_FROM, _TO) if side == "start" else (_TO, _FROM)
        return _SIDE if low in mine else -1.6 if low in other else 0.0

    def _introduced(self, param: Param, low: str, kind: Kind | None) -> float:
        """What a small word or a mark before a value says."""
        score = 0.0
        if low in _NAMING:
            score += 2.5 if param.role == "name" else -0.5
        if low in _SAYING:
            score += 2.2 if param.role == "text" else -0.3
        elif low in param.cues:
            score += _CUE_WORD
        elif low in _PREPOSITIONS and kind not in _NUMBERS:
            score += _PREPOSED
        return score

    def _by_word(self, param: Param, stemmed: str, own: Sequence[str], kind: Kind | None) -> float:
        """What a word with content before a value says."""
        if not stemmed:
            return 0.0
        if stemmed in own:
            return _BY_NAME
        if any(near(stemmed, word) for word in own):
            return _BY_LIKE
        return (_TOLD if kind else _TOLD_OF_CUT) if stemmed in param.cues else 0.0


def _listed(text: str) -> list[str]:
    """The items of a list in words."""
    items = (item.strip() for item in text.replace(" and ", ",").split(","))
    return [
        next((item[len(one) :] for one in ("the ", "a ", "an ") if item.startswith(one)), item)
        for item in items
        if item
    ]
