"""How a part of a request fits a tool: the best joint assignment of the part's values to the tool's params.

A score adds what the words say of the tool, how well each value fits its param, and a price for each word that nothing
explains. A logistic model over margins, unexplained words and the evidence of each value says how sure the match is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

from apps.plans.local.index import Library, Profile
from apps.plans.local.options import FIRM, Option, Options
from apps.plans.local.params import Param
from apps.plans.local.parts import HELD, Part, bits
from apps.plans.local.words import FILLERS, GROUPS, SMALL, UNPLANNED, near, pieces
from apps.plans.proposals import Evidence

WEIGHTS: Final = {
    "act_in_answer": -4.55,
    "asked": 0.83,
    "choice": 1.63,
    "cut": -1.21,
    "firm": 2.44,
    "gain": 1.07,
    "inverted": -2.31,
    "missing": -2.6,
    "no_verb": -0.18,
    "noun": 2.14,
    "particle": 2.3,
    "search": 6.33,
    "unasked": -1.16,
    "unexplained": -1.96,
    "unsaid": -0.98,
    "verb": 1.6,
}
"""Fitted on 944 requests over nine sets of tools, for the right tool among ten and the right values of it."""
MISSING: Final = 3.5
UNEXPLAINED: Final = 1.6
_LOOSE: Final = 0.5
_REQUIRED: Final = 0.6
_OPTIONAL: Final = -0.3
_BEAM: Final = 24
_FINALISTS: Final = 6
_NO_RIVAL: Final = 99.0
_ASKED_WITHIN: Final = 3
_ASIDE: Final = 0.5
_PASSING: Final = 0.3
"""How well a verb agrees that is some word of the tool's, but not its verb."""
_State = tuple[float, int, Mapping[str, int], tuple[tuple[str, Option], ...]]
"""A score, the tokens used, those that each side of ranges and pairs uses, and the options taken."""
_SHORT_WORD: Final = 5
_SAME_ROOT: Final = 0.8
_SIDES: Final = {"first": "second", "second": "first"}
_NONE_USED: Final[Mapping[str, int]] = {"first": 0, "second": 0}


@dataclass(slots=True)
class Match:
    """A tool with the values that it would get."""

    profile: Profile
    part: Part
    score: float
    options: dict[str, Option] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    unexplained: int = 0
    weak: int = 0
    """Tokens that only a detail of the tool's description explains."""
    verb: float = 0.0
    """How well the part's verb is the tool's."""
    named: float = 0.0
    """How well the part names what the tool works on."""
    unsaid: float = 0.0
    """How much the nouns of its name tell that the part does not say."""
    plural: bool = False
    """Does the part speak of several of what the tool speaks of as one?"""
    rival: float = _NO_RIVAL
    """By how much the next best assignment of other values to the same tool is worse."""

    @property
    def values(self) -> dict[str, Any]:
        return {name: option.value for name, option in self.options.items()}

    @property
    def unknown(self) -> list[str]:
        """The words that nothing explains."""
        return [self.part.reading.tokens[place].text for place in bits(self.unexplained)]


@dataclass(slots=True)
class _Said:
    """What the words that are no values say of a tool."""

    particle: float = 0.0
    firm: float = 0.0
    """How much the words tell that surely belong to the tool and are not in its name."""
    unexplained: int = 0
    weak: int = 0
    nouns: dict[str, float] = field(default_factory=dict)
    aside: float = 0.0
    """How sure the surest word is that belongs to the tool and is not in its name."""


class Matcher:
    """Fits the parts of one request to tools."""

    def __init__(self, library: Library, context: Mapping[str, Any], is_gentle: Callable[[str], bool]) -> None:
        self.library = library
        self.context = context
        self.is_gentle = is_gentle

    def match(
        self, part: Part, profile: Profile, offered: Mapping[str, Sequence[Option]], beside: Match | None = None
    ) -> Match:
        """Return the best way to call a tool for a part.

        :param offered: for params, values from elsewhere: earlier steps, producers.
        :param beside: another call that the part asks for, whose words and sure values are none of this one.
        """
        taken = 0
        for option in beside.options.values() if beside else ():
            taken |= option.mask if option.evidence != Evidence.CUT and option.fit > _LOOSE else 0
        other = (beside.profile, taken, beside.named > 0) if beside else None
        options = Options(part, profile, self.library, self.context, other)
        choices = {param.name: options.of(param, offered.get(param.name, ())) for param in profile.params}
        states: list[_State] = [(0.0, 0, _NONE_USED, ())]
        for param in sorted(profile.params, key=lambda one: (not one.required, len(choices[one.name]), one.name)):
            found = choices[param.name]
            if found or param.required:
                states = _extended(states, param, found, part.content)
        return _Whole(self, part, profile, options.explained).best(states[:_FINALISTS])


def _opens(part: Part) -> bool:
    """Does the request begin with its verb?"""
    return part.verb_at >= 0 and not part.content & ((1 << part.verb_at) - 1)


def _extended(states: Iterable[_State], param: Param, found: Iterable[Option], content: int) -> list[_State]:
    """The best states with one more param, left out or filled."""
    price, gain = (-MISSING, _REQUIRED) if param.required else (0.0, _OPTIONAL)
    later: list[_State] = []
    for score, used, sides, got in states:
        later.append((score + price, used, sides, got))
        for option in found:
            clash = option.mask & used
            if clash and (not option.side or clash & ~sides[_SIDES[option.side]] or clash & sides[option.side]):
                continue
            after = {**sides, option.side: sides[option.side] | option.mask} if option.side else sides
            later.append((score + gain + option.gain, used | option.mask, after, (*got, (param.name, option))))
    later.sort(key=lambda one: -(one[0] + UNEXPLAINED * (one[1] & content).bit_count()))
    return later[:_BEAM]


def _conflict(values: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Does some param have one value here and another there?"""
    return (
        any(name in others and others[name] != value for name, value in values.items())
        or not values.keys() <= others.keys()
    )


class _Whole:
    """One part and one tool: what whole assignments are worth."""

    def __init__(self, matcher: Matcher, part: Part, profile: Profile, explained: Mapping[int, float]) -> None:
        self.part, self.profile, self.library, self.explained = part, profile, matcher.library, explained
        self.gentle = matcher.is_gentle(profile.tool.uid)
        # "Email Ann", where no tool emails and one sends emails.
        self.is_verbal = (
            bool(part.verb)
            and profile.acts
            and not self.library.does(part.verb)
            and any(near(part.verb, noun) >= _SAME_ROOT for noun in profile.nouns)
        )
        self.nouns = {place: self._nouns_at(place) for place in explained if part.content >> place & 1}
        self.needed = [noun for noun in profile.nouns if noun != profile.prefix or noun not in profile.services]

    def best(self, states: Iterable[_State]) -> Match:
        """Return the best assignment by what its words leave unexplained."""
        found = sorted((self._match(used, dict(got)) for _, used, _, got in states), key=lambda one: -one.score)
        best = found[0]
        best.rival = next(
            (best.score - one.score for one in found[1:] if _conflict(one.values, best.values)), _NO_RIVAL
        )
        return best

    def _match(self, used: int, options: dict[str, Option]) -> Match:
        part, profile = self.part, self.profile
        said = self._said(used, options)
        verb, tells = self._verb(used), self.library.tells
        fits = {"particle": said.particle, "firm": said.firm}
        if part.verb and not used >> part.verb_at & 1:
            fits |= {"verb": verb, "no_verb": float(not verb)}
            if not verb:
                said.unexplained |= 0 if self.explained[part.verb_at] >= FIRM else 1 << part.verb_at
        elif part.question:
            fits |= {"act_in_answer": 1.0} if profile.acts else {"asked": verb}
        elif not part.verb:
            fits["unasked"] = float(profile.acts)
        missing = tuple(param.name for param in profile.params if param.required and param.name not in options)
        unsaid = sum(tells(noun) for noun in self.needed if noun not in said.nouns)
        fits |= {
            "choice": sum(one.evidence == Evidence.CHOICE for one in options.values()),
            "cut": sum(one.evidence == Evidence.CUT for one in options.values()),
            "gain": sum(one.gain for one in options.values()),
            "inverted": self._inversions(options),
            "missing": len(missing),
            "noun": sum(how * tells(noun) for noun, how in said.nouns.items()),
            "unexplained": said.unexplained.bit_count(),
            "unsaid": unsaid,
        }
        return Match(
            profile=profile,
            part=part,
            score=math.fsum(WEIGHTS[name] * value for name, value in fits.items()),
            options=options,
            missing=missing,
            unexplained=said.unexplained,
            weak=said.weak,
            verb=verb,
            named=max(said.nouns.values(), default=_ASIDE * said.aside if self.needed else 0.8),
            unsaid=unsaid,
            plural=self._is_plural(used),
        )

    def _inversions(self, options: Mapping[str, Option]) -> int:
        """How many values of one kind stand in another order than their params."""
        places = [
            (options[param.name].kind, options[param.name].first)
            for param in self.profile.params
            if param.name in options and options[param.name].kind is not None
        ]
        return sum(
            kind == other and first > later
            for place, (kind, first) in enumerate(places)
            for other, later in places[place + 1 :]
        )

    def _is_plural(self, used: int) -> bool:
        words = (self.part.low(place) for place in self.nouns if self.nouns[place] and not used >> place & 1)
        return any(low.endswith("s") and low not in self.profile.forms for low in words)

    def _verb(self, used: int) -> float:
        """How well the part's verb is the tool's; as a value, it agrees."""
        part, profile = self.part, self.profile
        if part.verb and used >> part.verb_at & 1:
            return 1.0
        if part.question and profile.verb and self.gentle:
            asking = [part.stems[place] for place in range(part.first, min(part.stop, part.first + _ASKED_WITHIN))]
            return max(near(stemmed, profile.verb) for stemmed in asking)
        same = near(part.verb, profile.verb) if part.verb and profile.verb else 0.0
        if self.is_verbal and not same:
            return 1.0
        low = part.low(part.verb_at)
        if low != part.verb and low in pieces(profile.tool.name):  # I paid it: mark_paid
            return 1.0
        return same or (_PASSING if profile.vocabulary.get(part.verb, 0.0) >= FIRM else 0.0)

    def _nouns_at(self, place: int) -> tuple[tuple[str, float], ...]:
        """The nouns of the tool's name that a word says."""
        found = ((noun, near(self.part.stems[place], noun)) for noun in self.profile.nouns)
        if place != self.part.verb_at:
            return tuple((noun, how) for noun, how in found if how)
        if _opens(self.part) and not self.is_verbal:
            return ()
        return tuple((noun, FIRM * how) for noun, how in found if how)

    def _said(self, used: int, options: Mapping[str, Option]) -> _Said:
        part, profile, said = self.part, self.profile, _Said()
        for place, sure in self.explained.items():
            low = part.low(place)
            if profile.particle and low in ("on", "off"):
                said.particle += 1.0 if low == profile.particle else -3.0
            if used >> place & 1:
                continue
            if low in HELD:
                said.unexplained |= 0 if self._is_harmless(place, low, options) else 1 << place
            elif nouns := self.nouns.get(place):
                for noun, how in nouns:
                    said.nouns[noun] = max(said.nouns.get(noun, 0.0), how)
            elif part.content >> place & 1 and place != part.verb_at:
                said.aside = max(said.aside, sure)
                said.firm += sure * self.library.tells(part.stems[place]) if sure >= FIRM else 0.0
                is_made = low == "new" and self.gentle and part.low(place - 1) in ("a", "an")
                is_filler = low in FILLERS or (low.endswith("ly") and len(low) > _SHORT_WORD)
                if is_made or not (sure or is_filler):
                    said.unexplained |= 1 << place
                elif sure < FIRM:
                    said.weak |= 1 << place
        return said

    def _is_harmless(self, place: int, low: str, options: Mapping[str, Option]) -> bool:
        if low in GROUPS["bulk"]:
            return self.gentle
        if low in GROUPS["question"] and self.part.question:
            return True
        if low in ("until", "till") and any(one.first == place + 1 for one in options.values()):
            return True
        refers = any(one.evidence in (Evidence.STEP, Evidence.ASSUMED, Evidence.CONTEXT) for one in options.values())
        is_known = not self.part.number and (self.part.question or self.part.found or any(self.nouns.values()))
        return low in GROUPS["back"] and bool(refers or is_known)


SURENESS: Final = {
    "bias": -1.61,
    "close": -0.58,
    "gentle": 0.56,
    "loose": -1.06,
    "margin": 0.32,
    "misfit": -2.18,
    "missing": -1.01,
    "named": 1.53,
    "opening": -1.9,
    "other": 0.6,
    "proper": 0.81,
    "typed": 1.1,
    "unexplained": -2.37,
    "verbless": -0.58,
    "weak": -1.1,
}
"""Fitted by a ridge on 1,350 requests over nine sets of tools; features were dropped while each set left out got likelier."""
READY: Final = 0.85
CONFIRM: Final = 0.7
READING: Final = 0.4
"""From here on a tool that only reads is shown, if each word is explained."""
DOUBTED: Final = 0.6
"""From here on it is shown though some word is not."""
UNNAMED: Final = 0.8
"""From here on it is shown for a question that says none of its nouns."""
CHANGING: Final = 0.45
"""From here on a tool that changes something is shown, if two values are said for it; else CONFIRM counts."""
ASK: Final = 0.17
"""From here on what a tool lacks is asked for."""
_FORMED: Final = frozenset({Evidence.TYPED, Evidence.QUOTED, Evidence.CHOICE, Evidence.CONTEXT})
_UNASKED: Final = 0.9
"""From here on a tool that changes something is sure though no verb asks for it."""
_ANNOUNCED: Final = 0.4
_CUED: Final = 0.8
_MARGIN: Final = 0.6
_MARGIN_OF_CHANGES: Final = 1.0
_AGREES: Final = 0.6
_MOST_MARGIN: Final = 6.0
_CLOSE: Final = 1.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """How likely a match is what was meant, and whether it may run at once."""

    p: float
    sure: bool
    """Nothing speaks against running it without a question."""


def judged(match: Match, rivals: Sequence[Match], *, gentle: bool) -> Verdict:
    """Judge a match beside the next best tools for the same part."""
    features = measured(match, rivals, gentle=gentle)
    total = SURENESS["bias"] + math.fsum(SURENESS[name] * value for name, value in features.items())
    p = 1 / (1 + math.exp(-total))
    is_clean = not match.weak and all(one.evidence != Evidence.CUT for one in match.options.values())
    plain = gentle and is_clean and match.verb * match.named == 1
    sure = (
        p >= (CONFIRM if plain else READY)
        and not features["unexplained"]
        and not features["missing"]
        and (gentle or not (match.plural or match.part.question))
        and (gentle or match.verb >= _AGREES or p >= _UNASKED)
        and features["margin"] >= (_MARGIN if gentle else _MARGIN_OF_CHANGES)
        and features["other"] >= _MARGIN / 2
    )
    return Verdict(p, sure)


def measured(match: Match, rivals: Sequence[Match], *, gentle: bool) -> dict[str, float]:
    """The features of a match."""
    near, part = [match.score - one.score for one in rivals], match.part
    cut = [one for one in match.options.values() if one.evidence == Evidence.CUT]
    return {
        "close": float(sum(one < _CLOSE for one in near)),
        "gentle": float(gentle),
        "loose": math.fsum(max(0.0, 1 - one.cued) for one in cut),
        "margin": min([_MOST_MARGIN, *near]),
        "misfit": math.fsum(1 - one.fit for one in match.options.values()),
        "missing": float(len(match.missing)),
        "named": match.named,
        "opening": float(not part.first),
        "other": min(_MOST_MARGIN / 2, match.rival),
        "proper": float(sum(one.text[:1].isupper() for one in cut)),
        "typed": float(sum(one.evidence in _FORMED for one in match.options.values())),
        "unexplained": float(match.unexplained.bit_count()),
        "verbless": float(not part.verb and not part.question),
        "weak": float(match.weak.bit_count()),
    }


def is_plain_name(option: Option, part: Part, *, gentle: bool) -> bool:
    """Do capitals tell where a value cut from plain words begins and ends, and some word what it is for?"""
    words = option.text.split()
    return (
        option.evidence == Evidence.CUT
        and option.cued >= (_ANNOUNCED if gentle else _CUED)
        and all(word[:1].isupper() or word in SMALL for word in (words[0], *words))
        and not any(
            part.reading.tokens[place].text[:1].isupper()
            for place in (option.first - 1, option.last + 1)
            if part.low(place)
        )
    )


def holding(part: Part, match: Match) -> tuple[str, ...]:
    """The words of a part that negate, condition, except or repeat it, or leave a choice, where no sure value holds them."""
    kept = 0
    for option in match.options.values():
        kept |= option.mask
    tokens = part.reading.tokens
    starts = {one.first for one in part.found}
    return tuple(
        tokens[place].text
        for place in bits(((1 << part.stop) - 1) & ~((1 << part.first) - 1) & ~kept)
        if any(
            said in UNPLANNED or (said == "or" and match.profile.acts)
            for said in accumulate((one.low for one in part.tokens[place - part.first :][:3]), "{} {}".format)
        )
        and not (place + 1 in starts and tokens[place].low in ("until", "till", "but"))
        and not (
            part.question
            and tokens[place].low in GROUPS["question"]
            and (part.low(place), part.low(place + 1)) != ("when", "the")
        )
    )
