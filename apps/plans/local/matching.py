"""How a part of a request fits a tool: the best joint assignment of the part's values to the tool's params."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, combinations
from typing import Any, Final

from apps.plans.local.index import WAYS, Library, Profile
from apps.plans.local.options import FIRM, SCORE, SECOND, Option, Options, together, weighed
from apps.plans.local.params import Param
from apps.plans.local.parts import Part, bits, mask_of
from apps.plans.local.words import ACTS, GROUPS, HELD, UNPLANNED, near, pieces
from apps.plans.proposals import Evidence

_BEAM, _FINALISTS, _ASKED_WITHIN, _LONG_WORD = 20, 4, 3, 6
_PASSING: Final = 0.3
"""How well a verb agrees that is some word of the tool's, but not its verb."""
SAME_ROOT: Final = 0.8
_LOW: Final = (1 << SECOND) - 1
_State = tuple[float, int, tuple[tuple[str, Option], ...]]
"""A score, what the values claim, and the values."""


@dataclass(slots=True)
class Match:
    """A tool with the values that it would get."""

    profile: Profile
    part: Part
    told: defaultdict[str, float]
    """What speaks for it and against it, its values aside."""
    options: dict[str, Option] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    unexplained: int = 0
    named: float = 0.0
    """How well the part names what the tool works on."""
    score: float = field(init=False)

    def __post_init__(self) -> None:
        self.score = weighed(self.told) + sum(one.gain for one in self.options.values())

    @property
    def values(self) -> dict[str, Any]:
        return {name: option.value for name, option in self.options.items()}

    @property
    def all_told(self) -> dict[str, float]:
        """What speaks for it and against it, with its values."""
        return together(self.told, *(one.told for one in self.options.values()))

    @property
    def used(self) -> int:
        """The tokens of its values."""
        return mask_of(at for one in self.options.values() for at in bits(one.mask))

    def add(self, told: Mapping[str, float]) -> None:
        """Let more speak for it."""
        self.told |= told
        self.score += weighed(told)


class Matcher:
    """Fits the parts of one request to tools."""

    def __init__(self, library: Library, context: Mapping[str, Any], is_gentle: Callable[[str], bool]) -> None:
        self.library, self.context, self.is_gentle = library, context, is_gentle

    def match(
        self, part: Part, profile: Profile, offered: Mapping[str, Sequence[Option]], beside: Match | None = None
    ) -> list[Match]:
        """Return the best ways to call a tool for a part, best first.

        :param offered: for params, values from elsewhere: earlier steps, producers.
        :param beside: another call that the part asks for, whose words and sure values are none of this one.
        """
        others = beside.options.values() if beside else ()
        taken = mask_of(
            at for one in others if one.evidence != Evidence.CUT and one.fit > FIRM for at in bits(one.mask)
        )
        options = Options(part, (profile, beside.profile) if beside else (profile,), self.library, taken)
        choices = {}
        for param in profile.params:
            if param.name in self.context:
                value = self.context[param.name]
                said = mask_of(one.place for one in part.tokens if one.text == value)
                told = {"context": float(param.required or said > 0)}
                choices[param.name] = [Option(value, Evidence.CONTEXT, told, said, param.name)]
            else:
                choices[param.name] = [*offered.get(param.name, ()), *options.of(param)]
        states: list[_State] = [(0.0, 0, ())]
        unknown = part.masks["content"] & ~mask_of(place for place, how in options.explained.items() if how)
        for param in sorted(profile.params, key=lambda one: (not one.required, len(choices[one.name]), one.name)):
            if choices[param.name]:
                states = _extended(states, param, choices[param.name], unknown)
        whole = _Whole(self, part, profile, options.explained)
        found = [whole.match((used | used >> SECOND) & _LOW, dict(got)) for _, used, got in states[:_FINALISTS]]
        return sorted(found, key=lambda one: -one.score)


def _extended(states: Iterable[_State], param: Param, found: Sequence[Option], unknown: int) -> list[_State]:
    """The best states with one more param, left out or filled."""
    price, gain = (SCORE["missing"], SCORE["required"]) if param.required else (0.0, SCORE["optional"])
    word, is_given = SCORE["unexplained"], any(one.evidence == Evidence.CONTEXT for one in found)
    # What the context gives nobody leaves out.
    later = [] if is_given else [(score + price, used, got) for score, used, got in states]
    later += [
        (score + gain + option.gain, used | option.claim, (*got, (param.name, option)))
        for score, used, got in states
        for option in found
        if not option.claim & used
    ]
    later.sort(key=lambda one: word * ((one[1] | one[1] >> SECOND) & unknown).bit_count() - one[0])
    return later[:_BEAM]


class _Whole:
    """One part and one tool: what whole assignments are worth."""

    def __init__(self, matcher: Matcher, part: Part, profile: Profile, explained: Mapping[int, float]) -> None:
        self.part, self.profile, self.library, self.explained = part, profile, matcher.library, explained
        self.gentle = matcher.is_gentle(profile.tool.uid)
        shows = (near(profile.verb, one) >= SAME_ROOT for one in ACTS["showing"])
        self.acts = part.question and not (self.gentle or any(shows))
        # "Email Ann", where no tool emails and one sends emails.
        least = FIRM if part.verb in ACTS["sending"] else SAME_ROOT
        is_noun = any(near(part.verb, noun) >= least for noun in profile.nouns)
        making = ["send"] if part.verb in ACTS["sending"] else ACTS["making"]
        is_making = any(near(profile.verb, one) for one in making)
        self.is_verbal = bool(part.verb) and is_making and not self.library.does(part.verb) and is_noun
        self.opens = part.verb_at >= 0 and not part.masks["content"] & ((1 << part.verb_at) - 1)
        self.nouns = {place: self._nouns_at(place) for place in bits(part.masks["content"])}
        said = part.masks["content"] | part.masks["held"]
        self.facts = [
            (1 << at, at, part.low(at), explained[at], matcher.library.tells(part.stems[at])) for at in bits(said)
        ]

    def match(self, used: int, options: dict[str, Option]) -> Match:
        part, profile = self.part, self.profile
        told, nouns, aside, unexplained = self._said(used, options)
        verb = self._verb(used)
        if part.verb and not used >> part.verb_at & 1:
            told["verb"] = verb
            if not verb and self.explained[part.verb_at] < FIRM:
                unexplained |= 1 << part.verb_at
                told["unexplained.verb"] = 1
        elif part.question:
            told["act_in_answer" if self.acts else "asked"] = 1.0 if self.acts else verb
        missing = tuple(param.name for param in profile.params if param.required and param.name not in options)
        required = sum(param.required and param.name in options for param in profile.params)
        plural = (part.low(at) for at, said in self.nouns.items() if said and not used >> at & 1)
        free = (at for at in part.stems if not used >> at & 1 and self._is_way(at, used))
        ways = {part.low(at) for at in free} & WAYS if profile.ways else frozenset()
        told |= {
            "way": len(ways & profile.ways),
            "way.other": bool(ways) and ways.isdisjoint(profile.ways),
            "inverted": sum(
                one.kind is not None and one.kind == other.kind and one.first > other.first
                for one, other in combinations([options[one.name] for one in profile.params if one.name in options], 2)
                if not (one.is_announced or other.is_announced)
            ),
            "halves": len({one.mask for one in options.values() if one.side and one.evidence == Evidence.CUT}) > 1,
            "missing": len(missing),
            "required": required,
            "optional": len(options) - required,
            "noun": sum(how * self.library.tells(noun) for noun, how in sorted(nouns.items())),
            "unnamed": not nouns,
            "plural": not self.gentle and any(low.endswith("s") and low not in profile.forms for low in plural),
        }
        named = max(nouns.values(), default=aside / 2 if profile.nouns else 0.8)
        return Match(profile, part, told, options, missing, unexplained, named)

    def _said(
        self, used: int, options: Mapping[str, Option]
    ) -> tuple[defaultdict[str, float], dict[str, float], float, int]:
        """What the words that are no values tell, the nouns they say, how sure the surest other is, and the unexplained."""
        part, masks = self.part, self.part.masks
        told, nouns, aside, unexplained = defaultdict[str, float](float), dict[str, float](), 0.0, 0
        for bit, place, low, sure, tells in self.facts:
            if used & bit:
                continue
            if low in HELD:
                unexplained |= 0 if self._is_harmless(place, low, options) else bit
            elif said := self.nouns.get(place):
                for noun, how in said:
                    nouns[noun] = max(nouns.get(noun, 0.0), how)
            elif place != part.verb_at:
                aside = max(aside, sure)
                told["firm"] += sure * tells if sure >= FIRM else 0.0
                told["synonym"] += FIRM <= sure < SAME_ROOT
                is_filler = low in GROUPS["filler"] or (low.endswith("ly") and len(low) >= _LONG_WORD)
                unexplained |= 0 if sure or is_filler else bit
                told["weak"] += 0 < sure < FIRM
        held, proper = unexplained & masks["held"], masks["proper"]
        told["unexplained"], told["unexplained.held"] = (unexplained & ~held).bit_count(), held.bit_count()
        told["unexplained.nowhere"] = (unexplained & masks["foreign"]).bit_count()
        told["unexplained.typed"] = (unexplained & masks["typed"]).bit_count()
        told["unexplained.apposed"] = (unexplained & ~proper & (used & proper) >> 1).bit_count()
        told["unexplained.proper"] = (unexplained & proper & ~(1 << part.first)).bit_count()
        return told, nouns, aside, unexplained

    def _verb(self, used: int) -> float:
        """How well the part's verb is the tool's; as a value, it agrees."""
        part, profile = self.part, self.profile
        if part.verb and used >> part.verb_at & 1:
            return 1.0
        if part.question and profile.verb and self.gentle:
            asking = [part.stems[place] for place in range(part.first, min(part.stop, part.first + _ASKED_WITHIN))]
            return max(near(stemmed, profile.verb) for stemmed in asking)
        same = near(part.verb, profile.verb) if part.verb and profile.verb else 0.0
        low = part.low(part.verb_at)
        if (self.is_verbal and not same) or (
            low != part.verb and low in pieces(profile.tool.name)
        ):  # I paid: mark_paid
            return 1.0
        return same or (_PASSING if profile.vocabulary.get(part.verb, 0.0) >= FIRM else 0.0)

    def _is_way(self, place: int, used: int) -> bool:
        """Does "on" belong to the verb, and not to the value behind it: "on Monday"?"""
        return place - 1 == self.part.verb_at or not used >> (place + 1) & 1

    def _nouns_at(self, place: int) -> tuple[tuple[str, float], ...]:
        """The nouns of the tool's name that a word says."""
        if place == self.part.verb_at and self.opens and not self.is_verbal:
            return ()
        share = FIRM if place == self.part.verb_at else 1.0
        found = ((noun, share * near(self.part.stems[place], noun)) for noun in self.profile.nouns)
        return tuple((noun, how) for noun, how in found if how)

    def _is_harmless(self, place: int, low: str, options: Mapping[str, Option]) -> bool:
        """Does a word that changes what is asked for change nothing here?"""
        if low in GROUPS["bulk"]:
            return self.gentle
        if _is_named(self.part, place, self.profile):
            return True
        if low in GROUPS["question"] and self.part.question:
            return True
        ahead = [one for one in options.values() if one.first == place + 1]
        is_repeated = low in GROUPS["repeat"] and any(one.evidence == Evidence.CHOICE for one in ahead)
        is_said = low == "that" and any("saying.c" in one.told for one in ahead)
        if is_repeated or is_said or (low in ("until", "till") and ahead):
            return True
        refers = any(one.evidence in (Evidence.STEP, Evidence.ASSUMED, Evidence.CONTEXT) for one in options.values())
        is_known = not self.part.number and (self.part.question or self.part.found or any(self.nouns.values()))
        return low in GROUPS["back"] and bool(refers or is_known)


def _is_named(part: Part, place: int, profile: Profile) -> bool:
    """Is a word for a repetition but the beginning of a tool's noun: the weekly goal of `set_weekly_goal`?"""
    low = part.low(place)
    return (
        low in GROUPS["repeat"] and low in pieces(profile.tool.name) and part.stems.get(place + 1, "") in profile.nouns
    )


def _tells_when(part: Part, place: int) -> bool:
    """Does a "when" say when something is to be done: "when run 7 has ended, …"? It asks in "when is …" and "when next bus"."""
    ahead = part.reading.tokens[place + 1 :]
    first = ahead[0].low if ahead else ""
    is_asking = first in GROUPS["be"] | GROUPS["have"] | GROUPS["modal"]
    return not is_asking and (first == "the" or any(one.low == "," for one in ahead))


def holding(part: Part, match: Match | None) -> tuple[str, ...]:
    """The words of a part that negate, condition, except or repeat it, or leave a choice, where no sure value holds them."""
    tokens, kept = part.reading.tokens, match.used if match else 0
    for one in match.options.values() if match else ():
        if one.evidence == Evidence.CHOICE and part.low(one.first - 1) in GROUPS["repeat"]:  # every Monday
            kept |= 1 << (one.first - 1)
    kept |= mask_of(one.place for one in part.tokens if match and _is_named(part, one.place, match.profile))
    starts = {one.first for one in part.found}
    found = []
    for place in range(part.first, part.stop):
        low, ahead = part.low(place), [one.low for one in part.tokens[place - part.first :][:3]]
        is_choice = match is not None and match.profile.acts
        holds = any(said in UNPLANNED or (said == "or" and is_choice) for said in accumulate(ahead, "{} {}".format))
        is_end = place + 1 in starts and low in ("until", "till", "but")
        asks = part.question and low in GROUPS["question"] and not (low == "when" and _tells_when(part, place))
        inverted = low == "should" and place == part.first and ahead[1:2] not in (["i"], ["we"])
        if (holds or inverted) and not (kept >> place & 1 or is_end or asks):
            found.append(tokens[place].text)
    return tuple(found)
