"""The local planner: a request and the tools of a tenant in, a proposal out. The same request gives the same proposal.

Every way to cut the request is tried, with the tools that its words find and the values that could serve them. What is told of
each whole plan is weighed by what was learned, the best is kept, and a judge says how likely it is right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice, permutations
from typing import Any, Final

from apps.plans.catalogue import GENTLE_EFFECTS, Catalogue, reference_to
from apps.plans.documents import Step
from apps.plans.local.chaining import Source, given, produced
from apps.plans.local.history import History
from apps.plans.local.index import Library, Profile
from apps.plans.local.matching import SAME_ROOT, Match, Matcher, holding
from apps.plans.local.options import FIRM, SAYING, Each, Option, together, weighed
from apps.plans.local.parts import Part, bits, cuts, is_sequel, mask_of, read_part
from apps.plans.local.values import read
from apps.plans.local.words import ACTS, GROUPS, SMALL, WEIGHTS
from apps.plans.proposals import UNSURE, Asked, Evidence, Lack, Likely, Missing, Proposal, Value, call

PROPOSER: Final = "local"
_CANDIDATES, _BARRED, _SEARCHED = 8, 4, 40
_MOST_TOKENS, _MOST_CHARACTERS = 300, 6_000
_RIVALS, _PROMISING, _SHORT, _MOST_IN_WISH = 4, 3, 2, 4
_AGREES: Final = 0.75
"""How well a verb is the tool's, for tools that are not among the most promising to be looked at still."""
_MOST_MARGIN, _NEAR = 6.0, 0.3
"""The largest margin that counts, and the margin of twins."""
_HELD: Final = 0.1
"""What the confidence is worth where a plan can't hold what is said."""
_READY: Final = 0.75
"""A plan that is right so surely may run, if no value was cut from plain words but names that capitals bound."""
_SHOWN, _SETTLED = 0.40, 0.12
"""It is shown for confirmation if it is right so surely, and where the asker said which tool is meant."""
_ASKED: Final = 0.02
"""What a param lacks is asked for, if the answer makes the plan right so surely."""
_HABITUAL, _LINKED = 0.7, 0.5
_BY_HABIT: Final = "Past plans for such requests used these tools; the words alone don't say so."
_CLOSING: Final = frozenset(".!?,") | GROUPS["polite"]


@dataclass(slots=True)
class Chosen:
    """What is done about a part: a match, the next best ones, and the best of what may not be used."""

    part: Part
    match: Match | None
    rivals: Sequence[Match] = ()
    """Other tools, the best first."""
    others: Sequence[Match] = ()
    """The same tool with other values, the best first."""
    barred: Match | None = None
    wish: bool = False


class Draft:
    """A whole plan."""

    def __init__(self, chosen: Sequence[Chosen]) -> None:
        self.chosen = chosen
        own = ["wish" if one.wish else "lost" for one in chosen if one.match is None]
        calls = permutations(((match.profile.tool.uid, match.values) for _, match in self.steps), 2)
        own += ["twice" for (uid, one), (same, other) in calls if uid == same and one.items() <= other.items()]
        own_told = together({"cut": len(chosen) - 1.0}, *({name: 1.0} for name in own))
        self.told = together(own_told, *(match.all_told for _, match in self.steps))
        """What speaks for it and against it."""
        self.score = weighed(own_told) + sum(match.score for _, match in self.steps)
        self.unknown = sum(self.told[name] for name in ("unexplained", "unexplained.verb", "unexplained.held"))
        """How many words nothing explains."""

    @property
    def steps(self) -> list[tuple[Chosen, Match]]:
        return [(one, one.match) for one in self.chosen if one.match is not None]

    @property
    def tools(self) -> list[str]:
        return [match.profile.tool.uid for _, match in self.steps]

    @property
    def profiles(self) -> list[Profile]:
        """The tools of its steps, and of those that they take values from."""
        matches = [match for _, match in self.steps]
        for match in matches:
            matches += [one.value.match for one in match.options.values() if isinstance(one.value, Source)]
        return list({one.profile.tool.uid: one.profile for one in matches}.values())


def propose(asked: Asked, library: Library, catalogue: Catalogue, history: History | None = None) -> Proposal:
    """Propose steps for a request, or say what is missing."""
    return Proposing(asked, library, catalogue, history).proposal()


class Proposing:
    """The work on one request."""

    def __init__(self, asked: Asked, library: Library, catalogue: Catalogue, history: History | None) -> None:
        self.asked, self.library, self.catalogue, self.history = asked, library, catalogue, history
        context = dict(asked.context)
        if asked.delegation_path:
            context["delegation_path"] = list(asked.delegation_path)
        text = asked.intent[:_MOST_CHARACTERS]
        self.reading = read(text, asked.now, library.spelt)
        tokens = self.reading.tokens
        self.stop = len(tokens)  # "Thank you." is left out
        while self.stop and tokens[self.stop - 1 - (tokens[self.stop - 1].low == "you")].low in _CLOSING:
            self.stop -= 1
        if self.stop and tokens[self.stop - 1].low in SAYING:  # "… saying thanks!"
            said = (one.place for one in tokens if one.low in GROUPS["polite"] | {"you"})
            self.stop = max(self.stop, 1 + max(said, default=-1))
        self.is_gentle, self.is_usable = cache(self._is_gentle), cache(self._is_usable)
        self.matcher = Matcher(library, context, self.is_gentle)
        self._done: dict[tuple[int, int, tuple[int, ...]], Chosen] = {}
        self.likely = Likely() if history is None else history.likely(text, library.relevance(text))

    def _is_gentle(self, uid: str) -> bool:
        """Does a tool change nothing, whoever runs it?"""
        offers = self.catalogue.open_offers(uid) or self.catalogue.offers_of(uid)
        return bool(offers) and all(one.effects <= GENTLE_EFFECTS for one in offers)

    def _is_usable(self, uid: str) -> bool:
        return bool(self.catalogue.open_offers(uid))

    def proposal(self) -> Proposal:
        """The best plan, as the caller gets it."""
        if not self.stop:
            nothing = Missing(kind=Lack.CONFIDENCE, detail="The request asks for nothing.")
            return Proposal(proposer=PROPOSER, missing=(nothing,))
        if self.stop > _MOST_TOKENS or len(self.asked.intent) > _MOST_CHARACTERS:
            limit = f"{_MOST_TOKENS} words or {_MOST_CHARACTERS} characters"
            long = f"The request has more than {limit}. Hand long values over in context."
            return Proposal(proposer=PROPOSER, missing=(Missing(kind=Lack.LIMIT, detail=long),))
        found = self.concluded(self.drafts()[0])
        return found if self.history is None or found.is_ready else self._recalled(found, self.history)

    def drafts(self) -> list[Draft]:
        """The best plan of each way to cut the request, best first."""
        drafts = [self._draft(way) for way in cuts(self.reading, self.stop, self.library)]
        return sorted(drafts, key=lambda one: -one.score)

    def _recalled(self, found: Proposal, history: History) -> Proposal:
        """What past plans for such words used, if they say it more surely than the words of the tools."""
        likely = {uid: p for uid, p in self.likely.tools if self.is_usable(uid) and self.library.profile(uid)}
        is_surer = bool(found.missing) or self.likely.confidence > found.confidence
        if not likely or likely.keys() == {step.tool_uid for step in found.steps} or not is_surer:
            return found
        part = read_part(self.reading, 0, self.stop, 0, self.library)
        profiles = {uid: profile for uid in likely if (profile := self.library.profile(uid))}
        matches = {uid: self.matcher.match(part, profile, {})[0] for uid, profile in profiles.items()}
        steps: list[Step] = []
        for uid in history.ordered({uid: _mentioned(part, profile) for uid, profile in profiles.items()}):
            values = {
                name: Value(value=option.value, evidence=option.evidence, text=option.text)
                for name, option in matches[uid].options.items()
                if not isinstance(option.value, Source)
            }
            above = [one for one in steps[-1:] if (history.links(str(one.tool_uid), uid) or 0) >= _LINKED]
            told = {"clause": part.number, "confidence": likely[uid], "depends_on": [one.step_id for one in above]}
            steps.append(call(len(steps) + 1, profiles[uid].tool, values, self.asked, **told))
        is_held = any(holding(part, one) for one in matches.values())
        is_sure = self.likely.confidence >= _HABITUAL and all(map(self.is_gentle, likely)) and not is_held
        missing = () if is_sure else found.missing or (Missing(kind=Lack.CONFIDENCE, detail=_BY_HABIT, text=part.text),)
        return replace(
            found,
            steps=steps,
            confidence=self.likely.confidence,
            questions=(),
            missing=missing,
            doubtful=True,
            assumptions=(*found.assumptions, "Past plans for such requests used these tools."),
        )

    # The best tools for the parts

    def _draft(self, way: Sequence[tuple[int, int]]) -> Draft:
        chosen: list[Chosen] = []
        for number, (first, stop) in enumerate(way):
            earlier = [one.match for one in chosen if one.match is not None]
            key = (first, stop, tuple(map(id, earlier)))
            if key not in self._done:
                part = read_part(self.reading, first, stop, number, self.library)
                self._done[key] = self._chosen(part, earlier)
            chosen.append(self._done[key])
        return Draft(chosen)

    def _chosen(self, part: Part, earlier: Sequence[Match]) -> Chosen:
        usable: list[list[Match]] = []
        barred: list[Match] = []
        for profile, told in self._candidates(part):
            found = self._matches(part, profile, given(part, profile, earlier, self.is_gentle), told)
            if self.is_usable(profile.tool.uid):
                usable.append(found)
            else:
                barred.append(found[0])
        usable.sort(key=lambda one: _order(one[0]))
        spoken = [one[0].profile for one in usable]
        agreeing = (one for one in usable[_PROMISING:] if one[0].missing and one[0].told["verb"] >= _AGREES)
        for tried in (*usable[:_PROMISING], *islice(agreeing, 2)):
            best = tried[0]
            unsure = any(one.evidence in UNSURE or one.fit < 1 for one in best.options.values())
            needs = best.missing or best.unexplained or unsure
            made = produced(best, self.matcher, self.is_usable, spoken) if needs else {}
            if made:
                for name, options in given(part, best.profile, earlier, self.is_gentle).items():
                    made[name] = [*made.get(name, []), *options]
                told = {name: best.told[name] for name in ("search", "likely")}
                tried.extend(self._matches(part, best.profile, made, told))
                tried.sort(key=lambda one: -one.score)
        usable.sort(key=lambda one: _order(one[0]))
        barred.sort(key=_order)
        first = usable[0] if usable else []
        wish = part.number > 0 and _is_wish(part, first[0] if first else None)
        rivals = [one[0] for one in usable[1 : _RIVALS + 1]]
        match = None if wish or not first else first[0]
        return Chosen(part, match, rivals, first[1:], barred[0] if barred else None, wish)

    def _matches(
        self, part: Part, profile: Profile, offered: Mapping[str, Sequence[Option]], told: Mapping[str, float]
    ) -> list[Match]:
        found = self.matcher.match(part, profile, offered)
        for one in found:
            one.add(told)
        return found

    def _candidates(self, part: Part) -> list[tuple[Profile, dict[str, float]]]:
        """The tools that the words of a part find, and those that past plans used, with what is told of each."""
        settled = self.asked.tools.get(part.number)
        if settled is not None and (profile := self.library.profile(settled)) is not None:
            return [(profile, {})]
        plain = (at for at in part.stems if not part.masks["typed"] >> at & 1 and part.low(at) not in SMALL)
        stems = {part.stems[at] for at in plain}
        stems |= {"send"} if part.verb in ACTS["sending"] else set()
        if part.question:
            stems |= {part.stems[at] for at in range(part.first, min(part.stop, part.first + 2))}
        stems = stems.union(*(self.library.sorts(str(one.value)) for one in part.found))
        best = self.library.search(stems, {str(one.kind) for one in part.found}, _SEARCHED)
        likely = dict(self.likely.tools)
        found: dict[str, tuple[Profile, float]] = {}
        counts = {True: 0, False: 0}
        for profile, score in best:
            usable = self.is_usable(profile.tool.uid)
            if counts[usable] < (_CANDIDATES if usable else _BARRED) and self.catalogue.offers_of(profile.tool.uid):
                counts[usable] += 1
                found[profile.tool.uid] = profile, score / best[0][1] - 1
        for uid in list(likely)[:_CANDIDATES]:
            if (profile_of := self.library.profile(uid)) is not None and self.is_usable(uid):
                found.setdefault(uid, (profile_of, -1.0))
        return [(one, {"search": share, "likely": likely.get(uid, 0.0)}) for uid, (one, share) in found.items()]

    # The answer

    def concluded(self, draft: Draft) -> Proposal:
        """What the caller gets of the best plan: the plan, questions, or what is missing."""
        measured = self.measured(draft)
        p = 1 / (1 + math.exp(-sum(weight * measured.get(name, 0.0) for name, weight in WEIGHTS["right"].items())))
        # "the other room?"
        is_unsaid = any(_points(one.part) and not (one.part.verb or match.options) for one, match in draft.steps)
        is_shown = p >= (_SETTLED if self.asked.tools else _SHOWN) and not is_unsaid
        is_sure = p >= _READY and self._is_plain(draft)
        laid = _Laid(self.asked, p, sure=is_sure, gentle=all(map(self.is_gentle, draft.tools)))
        missing: list[Missing] = []
        questions: list[dict[str, Any]] = []
        for chosen in draft.chosen:
            match, held = chosen.match, self._held(chosen)
            if match is None:
                missing += [held] if held else [] if chosen.wish else [self._lacking(chosen)]
                continue
            before = next((one.match for one in reversed(draft.chosen[: chosen.part.number]) if one.match), None)
            is_sequent = before is not None and (
                is_sequel(self.reading, chosen.part.first)
                or not all(self.is_gentle(one.profile.tool.uid) for one in (before, match))
            )
            step = laid.lay(match, chosen, before if is_sequent else None)
            if reason := held or self._barred(chosen):
                missing.append(reason)
            elif match.missing and p >= _ASKED:
                continue  # what lacks is asked for
            elif not is_shown and p >= _SETTLED and (twin := self._twin(chosen)) is not None:
                names = [match.profile.tool.name, twin.profile.tool.name]
                text = f"Two tools fit “{chosen.part.text}”: {names[0]} or {names[1]}. Which one is meant?"
                asked = {"text": text[:2000], "step_id": step.step_id, "tool_name": names[0], "choices": names}
                questions.append(asked)
            elif not is_shown:
                missing.append(self._lacking(chosen))
        if not laid.steps and not missing:
            missing.append(Missing(kind=Lack.TOOL, detail="No tool does this.", text=self.asked.intent))
        p *= _HELD if any(one.kind == Lack.CONDITION for one in missing) else 1.0
        return Proposal(
            proposer=PROPOSER,
            steps=laid.steps,
            confidence=round(p, 4) if laid.steps else 0.0,
            questions=questions,
            missing=missing,
            doubtful=not is_sure,
            wishes=[one.part.text for one in draft.chosen if one.wish],
        )

    def _is_plain(self, draft: Draft) -> bool:
        """Does nothing speak against running it at once? A value that nothing takes does. If it changes something, so do an
        unexplained word, a lookup that nobody spoke of, and an act on what is not named, on several, or on "the other".
        """
        acts = [(one, match) for one, match in draft.steps if not self.is_gentle(match.profile.tool.uid)]
        is_vague = any(
            one.part.question
            or match.told["plural"]
            or _points(one.part)
            or not (match.named or len(match.options) > 1)
            for one, match in acts
        )
        is_loose = draft.unknown or draft.told["fed"] > draft.told["fed.named"] or is_vague
        is_hint = any(match.named < SAME_ROOT and not (one.part.verb or match.options) for one, match in draft.steps)
        return not (draft.told["unexplained.typed"] or is_hint or (acts and is_loose))

    def measured(self, draft: Draft) -> dict[str, float]:
        """What tells of a plan whether it is right."""
        steps, told, profiles = draft.steps, draft.told, draft.profiles
        shares, content, valued, known = list[float](), 0, 0, 0
        for _, match in steps:
            part, masks = match.part, match.part.masks
            cut = mask_of(at for one in match.options.values() if one.evidence == Evidence.CUT for at in bits(one.mask))
            plain = {at: part.stems[at] for at in bits(masks["content"] & ~masks["typed"])}
            explained = {at: max(one.explains(stemmed) for one in profiles) for at, stemmed in plain.items()}
            said = {plain[at]: sure for at, sure in explained.items() if not (match.used | masks["held"]) >> at & 1}
            weights = {stemmed: self.library.idf(stemmed) for stemmed in sorted(said)}
            if weights:
                shares.append(sum(weight * said[one] for one, weight in weights.items()) / sum(weights.values()))
            content += masks["content"].bit_count()
            valued += (match.used & ~cut & masks["content"]).bit_count()
            known += sum(explained.get(at, 0.0) >= FIRM for at in bits(cut))
        near = [match.score - other.score for chosen, match in steps for other in chosen.rivals]
        alike = [
            match.score - one.score
            for chosen, match in steps
            for one in chosen.others
            if not one.values.items() <= match.values.items()
        ]
        options = [option for _, match in steps for option in match.options.values()]
        return {
            "act_in_answer": told["act_in_answer"],
            "bias": 1.0,
            "clean": not draft.unknown + told["weak"],
            "covered": min(shares, default=0.5),
            "cut.known": known,
            "fed": told["fed"],
            "fed.empty": told["fed.empty"],
            "gain.cut": min((one.gain for one in options if one.evidence == Evidence.CUT), default=0.0),
            "held": told["unexplained.held"],
            "lost": told["lost"],
            "margin": max(0.0, min([_MOST_MARGIN, *near])),
            "margin.values": max(0.0, min([_MOST_MARGIN / 2, *alike])),
            "question": any(match.part.question for _, match in steps),
            "score": max(-1.0, min(1.0, draft.score / 10)),
            "short": content <= _SHORT and not any(one.evidence == Evidence.QUOTED for one in options),
            "unexplained.proper": told["unexplained.proper"],
            "unexplained.verb": told["unexplained.verb"],
            "unnamed": told["unnamed"],
            "unknown.share": draft.unknown / max(1, content),
            "valued": valued,
            "verb": min((match.told["verb"] for _, match in steps if "verb" in match.told), default=1.0),
            "verb.less": any(not match.part.verb and not match.part.question for _, match in steps),
        }

    def _twin(self, chosen: Chosen) -> Match | None:
        """Another tool that fits as well."""
        match = chosen.match
        if match is None or chosen.part.number in self.asked.tools:
            return None
        return next((one for one in chosen.rivals if match.score - one.score < _NEAR and not one.missing), None)

    def _held(self, chosen: Chosen) -> Missing | None:
        """What is said that a plan can't hold, if there is such a thing."""
        held = holding(chosen.part, chosen.match)
        if not held:
            return None
        detail = f"The request says “{held[0]}”, and a plan can't hold a condition, an exception or a repetition."
        return Missing(kind=Lack.CONDITION, detail=detail, text=chosen.part.text)

    def _barred(self, chosen: Chosen) -> Missing | None:
        """Why the tool that fits best may not be used, if there is such a one."""
        barred, match = chosen.barred, chosen.match
        if barred is None or barred.unexplained.bit_count() > 1 or (match and match.score > barred.score - 1.0):
            return None
        tool = barred.profile.tool
        offer = self.catalogue.offers_of(tool.uid)[0]
        detail = f"{tool.name} of {offer.worker_id} does this and may not be used: {self.catalogue.bar(offer)}."
        named = {"tool_name": tool.name, "tool_uid": tool.uid}
        return Missing(kind=Lack.PERMISSION, detail=detail, text=chosen.part.text, **named)

    def _lacking(self, chosen: Chosen) -> Missing:
        part, match = chosen.part, chosen.match
        if (reason := self._barred(chosen)) is not None:
            return reason
        if match is None:
            return Missing(kind=Lack.TOOL, detail=f"No registered tool does “{part.text}”.", text=part.text)
        tool = match.profile.tool
        if unknown := [part.reading.tokens[at].text for at in bits(match.unexplained)][:3]:
            told = ", ".join(f"“{word}”" for word in unknown)
            detail = f"No registered tool does this: {tool.name} comes nearest, and nothing of it explains {told}."
            return Missing(kind=Lack.TOOL, detail=detail, text=part.text, tool_name=tool.name)
        detail = f"{tool.name} comes nearest to “{part.text}”, and it is not sure that it is meant."
        return Missing(kind=Lack.CONFIDENCE, detail=detail, text=part.text, tool_name=tool.name)


class _Laid:
    """The steps of a plan, as they are laid one after the other."""

    def __init__(self, asked: Asked, p: float, *, sure: bool, gentle: bool) -> None:
        self.asked, self.p, self.sure, self.gentle = asked, p, sure, gentle
        self.steps: list[Step] = []
        self._places: dict[int, int] = {}

    def lay(self, match: Match, chosen: Chosen | None = None, before: Match | None = None) -> Step:
        """Add a match as a step, after the steps that it takes values from and the one before, and return it."""
        if id(match) in self._places:
            return self.steps[self._places[id(match)]]
        values: dict[str, Value] = {}
        others: list[tuple[str, Any]] = []
        for name, option in match.options.items():
            value: Any = option.value
            if isinstance(value, Each):
                others += [(name, one) for one in value.values[1:]]
                value = value.values[0]
            if isinstance(value, Source):
                cited = reference_to(self.lay(value.match).step_id, *value.path)
                value = [cited] if value.listed else cited
            # Capitals tell where names begin and end, though no quotes do. To change something, the param is named as well.
            is_bound = option.is_proper and (self.gentle or option.is_announced)
            evidence = Evidence.TYPED if self.sure and chosen and is_bound else option.evidence
            values[name] = Value(value=value, evidence=evidence, text=option.text)
        place = self._places[id(match)] = len(self.steps)
        rivals = [(one, 1 / (1 + math.exp(match.score - one.score))) for one in (chosen.rivals[:3] if chosen else ())]
        told = {
            "clause": chosen.part.number if chosen is not None else None,
            "confidence": round(self.p, 4),
            "depends_on": [self.lay(before).step_id] if before else [],
            "alternatives": [
                {"tool_name": one.profile.tool.name, "tool_uid": one.profile.tool.uid, "score": round(share, 4)}
                for one, share in rivals
            ],
        }
        for name, value in [("", None), *others]:
            if name:
                values[name] = replace(values[name], value=value)
            self.steps.append(call(len(self.steps) + 1, match.profile.tool, values, self.asked, **told))
        return self.steps[place]


def _mentioned(part: Part, profile: Profile) -> int:
    """The place in a part that speaks most of a tool."""
    return max(part.stems, key=lambda place: (profile.explains(part.stems[place]), -place), default=part.stop)


def _points(part: Part) -> bool:
    """Does it speak of what is not said: "the other one"?"""
    return any(one.low in GROUPS["pointing"] for one in part.tokens)


def _order(match: Match) -> tuple[float, str]:
    return -match.score, match.profile.tool.uid


def _is_wish(part: Part, match: Match | None) -> bool:
    """Does a part ask for what the asker itself makes of the results, and no tool does it?"""
    if match is not None and not match.missing and not match.unexplained and match.named:
        return False
    content = [part.stems[place] for place in bits(part.masks["content"])]
    return len(content) <= _MOST_IN_WISH and any(one in ACTS["wish"] for one in content)
