"""The local planner: a request and the tools of a tenant in, a proposal out. The same request gives the same proposal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final

from apps.plans.catalogue import GENTLE_EFFECTS, Catalogue
from apps.plans.local.chaining import Source, given, produced
from apps.plans.local.history import History
from apps.plans.local.index import Library, Profile
from apps.plans.local.matching import (
    ASK,
    CHANGING,
    CONFIRM,
    DOUBTED,
    MISSING,
    READING,
    UNEXPLAINED,
    UNNAMED,
    WEIGHTS,
    Match,
    Matcher,
    Verdict,
    holding,
    is_plain_name,
    judged,
)
from apps.plans.local.options import Each
from apps.plans.local.parts import Part, bits, cuts, is_sequel, read_part
from apps.plans.local.tokens import Reading
from apps.plans.local.values import read
from apps.plans.local.words import ACTS, SMALL
from apps.plans.proposals import (
    UNSURE,
    Asked,
    Evidence,
    Lack,
    Likely,
    Missing,
    Proposal,
    ProposedStep,
    Question,
    Ref,
    Value,
    question_for,
)

PROPOSER: Final = "local"
_CANDIDATES: Final = 10
_BARRED: Final = 4
_SEARCHED: Final = 40
_MOST_TOKENS: Final = 300
_RIVALS: Final = 4
_PROMISING: Final = 3
_STEP_PRICE: Final = 1.0
_NEAR: Final = 0.6
_FITTING: Final = 2.5
_MOST_UNKNOWN: Final = 2
_MOST_UNSAID: Final = 2.0
_UNSAID: Final = (Evidence.STEP, Evidence.ASSUMED)
_LIKELY: Final = 2.0
_LINKED: Final = 0.5
_HELD: Final = 0.1
"""What the confidence is worth where a plan can't hold what is said."""
_LEAST_SURE: Final = 0.03
"""How often a plan is right that the judge gives up."""
_TRUSTED: Final = 0.955
"""What of the judge's certainty counts: one plan in sixty-six fails for what no feature tells."""
_BY_HABIT: Final = "Past plans for such requests used these tools; the words alone don't say so."
_MOST_IN_WISH: Final = 4


@dataclass(slots=True)
class _Chosen:
    """What is done about a part: a match, the next best ones, and the best of what may not be used."""

    part: Part
    match: Match | None
    rivals: Sequence[Match] = ()
    barred: Match | None = None
    wish: bool = False


@dataclass(slots=True)
class _Draft:
    chosen: list[_Chosen] = field(default_factory=list)

    @property
    def rank(self) -> tuple[bool, float]:
        bad, score = 0, -_STEP_PRICE * (len(self.chosen) - 1)
        for one in self.chosen:
            if one.wish:
                score += 1.0
            elif one.match is None:
                bad, score = bad + 3, score - 5.0
            else:
                bad += one.match.unexplained.bit_count() + 2 * len(one.match.missing)
                score += one.match.score
        return bad == 0, score


def propose(asked: Asked, library: Library, catalogue: Catalogue, history: History | None = None) -> Proposal:
    """Propose steps for a request, or say what is missing."""
    return _Proposing(asked, library, catalogue, history).proposal()


class _Proposing:
    """The work on one request."""

    def __init__(self, asked: Asked, library: Library, catalogue: Catalogue, history: History | None) -> None:
        self.asked, self.library, self.catalogue, self.history = asked, library, catalogue, history
        context = dict(asked.context)
        if asked.delegation_path:
            context["delegation_path"] = list(asked.delegation_path)
        self.reading: Reading = read(asked.intent, asked.now, library.spelt)
        self.is_gentle, self.is_usable = cache(self._is_gentle), cache(self._is_usable)
        self.matcher = Matcher(library, context, self.is_gentle)
        self._done: dict[tuple[int, int, tuple[str, ...]], _Chosen] = {}
        self.likely = Likely() if history is None else history.likely(asked.intent, library.relevance(asked.intent))
        self._likely = dict(self.likely.tools)

    def _is_gentle(self, uid: str) -> bool:
        """Does a tool change nothing, whoever runs it?"""
        offers = self.catalogue.open_offers(uid) or self.catalogue.offers_of(uid)
        return bool(offers) and all(one.effects <= GENTLE_EFFECTS for one in offers)

    def _is_usable(self, uid: str) -> bool:
        return bool(self.catalogue.open_offers(uid))

    def proposal(self) -> Proposal:
        tokens = self.reading.tokens
        stop = len(tokens)
        while stop and tokens[stop - 1].text in ".!?":
            stop -= 1
        if not stop:
            return _refused([Missing(kind=Lack.CONFIDENCE, detail="The request asks for nothing.")])
        if stop > _MOST_TOKENS:
            return _refused([Missing(kind=Lack.LIMIT, detail=f"The request has more than {_MOST_TOKENS} words.")])
        drafts = [self._draft(way) for way in cuts(self.reading, stop, self.library)]
        found = self._concluded(max(drafts, key=lambda one: one.rank))
        return found if self.history is None or found.is_ready else self._recalled(found, self.history, stop)

    def _recalled(self, found: Proposal, history: History, stop: int) -> Proposal:
        """What past plans for such words used, if they say it more surely than the words of the tools."""
        tools = {step.tool.uid for step in found.steps}
        likely = {uid: p for uid, p in self.likely.tools if self.is_usable(uid) and self.library.profile(uid)}
        is_surer = bool(found.missing) or self.likely.confidence > found.confidence
        if not likely or likely.keys() == tools or not is_surer:
            return found
        part = read_part(self.reading, 0, stop, 0, self.library)
        matches = {
            uid: self.matcher.match(part, profile, {}) for uid in likely if (profile := self.library.profile(uid))
        }
        steps: list[ProposedStep] = []
        for uid in history.ordered({uid: _mentioned(part, one.profile) for uid, one in matches.items()}):
            values = {
                name: Value(value=option.value, evidence=option.evidence, text=option.text)
                for name, option in matches[uid].options.items()
                if not isinstance(option.value, Source)
            }
            before = steps[-1].tool.uid if steps else None
            steps.append(
                ProposedStep(
                    tool=matches[uid].profile.tool,
                    values=values,
                    missing=tuple(name for name in matches[uid].profile.tool.required if name not in values),
                    text=part.text,
                    confidence=likely[uid],
                    after=frozenset(
                        {len(steps) - 1} if before and (history.links(before, uid) or 0) >= _LINKED else ()
                    ),
                )
            )
        is_held = any(holding(part, one) for one in matches.values())
        is_sure = self.likely.confidence >= CONFIRM and all(map(self.is_gentle, likely)) and not is_held
        missing = () if is_sure else found.missing or (Missing(kind=Lack.CONFIDENCE, detail=_BY_HABIT, text=part.text),)
        return replace(
            found,
            steps=tuple(steps),
            confidence=self.likely.confidence,
            questions=(),
            missing=missing,
            doubtful=True,
            assumptions=(*found.assumptions, "Past plans for such requests used these tools."),
        )

    # The best tools for the parts

    def _draft(self, way: Sequence[tuple[int, int]]) -> _Draft:
        draft = _Draft()
        for number, (first, stop) in enumerate(way):
            earlier = [one.match for one in draft.chosen if one.match is not None]
            chosen = self._choose(first, stop, number, earlier)
            draft.chosen.append(chosen)
        return draft

    def _choose(self, first: int, stop: int, number: int, earlier: Sequence[Match]) -> _Chosen:
        key = (first, stop, tuple(one.profile.tool.uid for one in earlier))
        if key not in self._done:
            self._done[key] = self._chosen(read_part(self.reading, first, stop, number, self.library), earlier)
        return self._done[key]

    def _chosen(self, part: Part, earlier: Sequence[Match]) -> _Chosen:
        usable: list[Match] = []
        barred: list[Match] = []
        bonuses = dict[str, float]()
        for profile, bonus in self._candidates(part):
            match = self.matcher.match(part, profile, given(part, profile, earlier, self.is_gentle))
            bonuses[profile.tool.uid] = bonus
            match.score += bonus
            (usable if self.is_usable(profile.tool.uid) else barred).append(match)
        usable.sort(key=_order)
        promising = sorted(usable, key=_promise)[:_PROMISING]
        for place, match in enumerate(usable):
            if place >= _PROMISING and match not in promising:
                continue
            unsure = (one for one in match.options.values() if one.evidence in UNSURE or one.fit < 1)
            if match.missing or match.unexplained or any(unsure):
                offered = produced(match, self.matcher, self.is_usable)
                if offered:
                    for name, options in given(part, match.profile, earlier, self.is_gentle).items():
                        offered[name] = [*offered.get(name, []), *options]
                    again = self.matcher.match(part, match.profile, offered)
                    again.score += bonuses[match.profile.tool.uid]
                    if again.score > match.score:
                        usable[place] = again
        usable.sort(key=_order)
        barred.sort(key=_order)
        best = usable[0] if usable else None
        wish = _is_wish(part, best) and part.number > 0
        rivals = usable[1 : _RIVALS + 1]
        return _Chosen(part, None if wish else best, rivals, barred[0] if barred else None, wish)

    def _candidates(self, part: Part) -> list[tuple[Profile, float]]:
        settled = self.asked.tools.get(part.number)
        if settled is not None and (profile := self.library.profile(settled)) is not None:
            return [(profile, 0.0)]
        stems = {
            stemmed
            for place, stemmed in part.stems.items()
            if not part.typed >> place & 1 and part.reading.tokens[place].low not in SMALL
        }
        if part.question:
            stems |= {part.stems[place] for place in range(part.first, min(part.stop, part.first + 2))}
        kinds = {str(one.kind) for one in part.found}
        stems |= {noun for one in part.found for sort in self.library.sorts(str(one.value)) for noun in sort}
        found: dict[str, tuple[Profile, float]] = {}
        counts = {True: 0, False: 0}
        best = self.library.search(stems, kinds, _SEARCHED)
        for profile, score in best:
            usable = self.is_usable(profile.tool.uid)
            if counts[usable] < (_CANDIDATES if usable else _BARRED) and self.catalogue.offers_of(profile.tool.uid):
                counts[usable] += 1
                found[profile.tool.uid] = profile, WEIGHTS["search"] * (score / best[0][1] - 1)
        for uid, _ in self.likely.tools[:_CANDIDATES]:
            if (profile := self.library.profile(uid)) is not None and self.is_usable(uid):
                found.setdefault(uid, (profile, -WEIGHTS["search"]))
        return [(profile, bonus + _LIKELY * self._likely.get(uid, 0.0)) for uid, (profile, bonus) in found.items()]

    # The answer

    def _concluded(self, draft: _Draft) -> Proposal:
        steps: list[ProposedStep] = []
        places: dict[int, int] = {}
        missing: list[Missing] = []
        questions: list[Question] = []
        wishes: list[str] = []
        confidence, doubtful = 1.0, False
        for chosen in draft.chosen:
            if chosen.wish:
                wishes.append(chosen.part.text)
                continue
            if chosen.match is None:
                missing.append(self._lacking(chosen, None))
                confidence = 0.0
                continue
            held = self._held(chosen, chosen.match)
            verdict = judged(chosen.match, chosen.rivals, gentle=self.is_gentle(chosen.match.profile.tool.uid))
            place = self._lay(chosen.match, chosen, verdict, steps, places)
            steps[place] = replace(steps[place], after=self._after(chosen, draft, places))
            confidence *= verdict.p * (_HELD if held else 1.0)
            if reason := held or self._barred(chosen):
                missing.append(reason)
            elif chosen.match.missing and (verdict.p >= ASK or self._fits(chosen.match)):
                tool, names = chosen.match.profile.tool, chosen.match.missing
                questions += [question_for(at, tool, name) for at in range(place, len(steps)) for name in names]
            elif (twin := self._twin(chosen)) is not None:
                names = (chosen.match.profile.tool.name, twin.profile.tool.name)
                text = f"Two tools fit “{chosen.part.text}”: {names[0]} or {names[1]}. Which one is meant?"
                questions.append(Question(step=place, param=None, text=text, choices=names))
            elif chosen.match.missing or not self._is_meant(chosen.match, verdict):
                missing.append(self._lacking(chosen, verdict))
            elif not verdict.sure:
                doubtful = True
        if not steps and not missing:
            missing.append(Missing(kind=Lack.TOOL, detail="No tool does this.", text=self.asked.intent))
        return Proposal(
            proposer=PROPOSER,
            steps=tuple(steps),
            confidence=round(_LEAST_SURE + _TRUSTED * confidence, 4) if steps else 0.0,
            questions=tuple(questions),
            missing=tuple(missing),
            doubtful=doubtful,
            wishes=tuple(wishes),
        )

    def _after(self, chosen: _Chosen, draft: _Draft, places: Mapping[int, int]) -> frozenset[int]:
        """The step of the part before, if the order matters: "then", or one of the two changes something."""
        before = [one.match for one in draft.chosen[: chosen.part.number] if one.match and id(one.match) in places]
        if not before or chosen.match is None:
            return frozenset()
        gentle = all(self.is_gentle(one.profile.tool.uid) for one in (before[-1], chosen.match))
        if gentle and not is_sequel(self.reading, chosen.part.first):
            return frozenset()
        return frozenset({places[id(before[-1])]})

    def _lay(
        self, match: Match, chosen: _Chosen | None, verdict: Verdict, steps: list[ProposedStep], places: dict[int, int]
    ) -> int:
        """Add a match as a step, after the steps that it takes values from, and return its place."""
        if id(match) in places:
            return places[id(match)]
        values: dict[str, Value] = {}
        others: list[tuple[str, Any]] = []
        for name, option in match.options.items():
            value: Any = option.value
            if isinstance(value, Each):
                others += [(name, one) for one in value.values[1:]]
                value = value.values[0]
            if isinstance(value, Source):
                value = Ref(self._lay(value.match, None, verdict, steps, places), value.path)
            told = verdict.sure and is_plain_name(option, match.part, gentle=self.is_gentle(match.profile.tool.uid))
            evidence = Evidence.TYPED if told else option.evidence
            text = option.text if evidence != Evidence.STEP else ""
            values[name] = Value(value=value, evidence=evidence, text=text)
        places[id(match)] = len(steps)
        rivals = chosen.rivals if chosen is not None else ()
        steps.append(
            ProposedStep(
                tool=match.profile.tool,
                values=values,
                missing=match.missing,
                part=chosen.part.number if chosen is not None else None,
                text=match.part.text,
                confidence=round(verdict.p, 4),
                alternatives=tuple((one.profile.tool, _share(one, match)) for one in rivals[:3]),
            )
        )
        for name, value in others:
            steps.append(replace(steps[-1], values={**values, name: replace(values[name], value=value)}))
        return places[id(match)]

    def _fits(self, match: Match) -> bool:
        """Does the tool fit, whatever is missing?"""
        return (
            match.unexplained.bit_count() < min(_MOST_UNKNOWN, match.part.content.bit_count())
            and not match.unexplained >> max(match.part.verb_at, 0) & 1
            and match.score + 5.0 * len(match.missing) >= _FITTING
            and (match.verb > 0 or match.named > 0)
        )

    def _is_meant(self, match: Match, verdict: Verdict) -> bool:
        """May it be shown for confirmation? A tool must be the surer, the less of its name is said."""
        unknown, is_named = match.unexplained.bit_count(), match.named > 0
        if is_gentle := self.is_gentle(match.profile.tool.uid):
            least = UNNAMED if match.part.question and not is_named else DOUBTED if unknown else READING
        else:
            said = sum(one.mask > 0 and one.evidence not in _UNSAID for one in match.options.values())
            is_told = said > 1 and not unknown and (is_named or match.unsaid <= _MOST_UNSAID)
            least = CHANGING if is_told else CONFIRM
        return verdict.p >= least and (is_gentle or unknown < _MOST_UNKNOWN)

    def _twin(self, chosen: _Chosen) -> Match | None:
        """Another tool that fits as well."""
        match = chosen.match
        if match is None or chosen.part.number in self.asked.tools:
            return None
        for other in chosen.rivals:
            if (
                match.score - other.score < _NEAR / 2
                and not other.missing
                and other.unexplained.bit_count() <= match.unexplained.bit_count()
                and other.verb >= match.verb
                and other.named >= match.named
            ):
                return other
        return None

    def _held(self, chosen: _Chosen, match: Match) -> Missing | None:
        """What is said that a plan can't hold, if there is such a thing."""
        held = holding(chosen.part, match)
        if not held:
            return None
        detail = f"The request says “{held[0]}”, and a plan can't hold a condition, an exception or a repetition."
        return Missing(kind=Lack.CONDITION, detail=detail, text=chosen.part.text)

    def _barred(self, chosen: _Chosen) -> Missing | None:
        """Why the tool that fits best may not be used, if there is such a one."""
        barred, match = chosen.barred, chosen.match
        if (
            barred is None
            or barred.unexplained.bit_count() > 1
            or (match is not None and match.score > barred.score - 1.0)
        ):
            return None
        tool = barred.profile.tool
        offer = self.catalogue.offers_of(tool.uid)[0]
        reason = self.catalogue.bar(offer)
        detail = f"{tool.name} of {offer.worker_id} does this and may not be used: {reason}."
        named = {"tool_name": tool.name, "tool_uid": tool.uid}
        return Missing(kind=Lack.PERMISSION, detail=detail, text=chosen.part.text, **named)

    def _lacking(self, chosen: _Chosen, verdict: Verdict | None) -> Missing:
        part, match = chosen.part, chosen.match
        if (reason := self._barred(chosen)) is not None:
            return reason
        if match is None or verdict is None:
            return Missing(kind=Lack.TOOL, detail=f"No registered tool does “{part.text}”.", text=part.text)
        tool = match.profile.tool
        if match.unknown:
            told = ", ".join(f"“{word}”" for word in match.unknown[:3])
            detail = f"No registered tool does this: {tool.name} comes nearest, and nothing of it explains {told}."
            return Missing(kind=Lack.TOOL, detail=detail, text=part.text, tool_name=tool.name)
        detail = f"{tool.name} comes nearest to “{part.text}”, and it is not sure that it is meant."
        return Missing(kind=Lack.CONFIDENCE, detail=detail, text=part.text, tool_name=tool.name)


def _mentioned(part: Part, profile: Profile) -> int:
    """The place in a part that speaks most of a tool."""
    return max(part.stems, key=lambda place: (profile.explains(part.stems[place]), -place), default=part.stop)


def _promise(match: Match) -> tuple[float, str]:
    """The order of matches, were all given that they lack."""
    filled = MISSING * len(match.missing) + UNEXPLAINED * match.unexplained.bit_count()
    return -match.score - filled, match.profile.tool.uid


def _order(match: Match) -> tuple[float, str]:
    return -match.score, match.profile.tool.uid


def _share(one: Match, best: Match) -> float:
    return round(1 / (1 + math.exp(best.score - one.score)), 4)


def _refused(missing: Sequence[Missing]) -> Proposal:
    return Proposal(proposer=PROPOSER, missing=tuple(missing))


def _is_wish(part: Part, match: Match | None) -> bool:
    """Does a part ask for what the asker itself makes of the results, and no tool does it?"""
    if match is not None and not match.missing and not match.unexplained and match.named:
        return False
    content = [part.stems[place] for place in bits(part.content)]
    return len(content) <= _MOST_IN_WISH and any(one in ACTS["wish"] for one in content)
