"""Which tools serve a request: each clause is explained by a tool, by the synthesis at the end, or named as unmatched.

Words decide where nothing has been learned. Where past plans know a tool, what they say decides on it; clauses then need only be
accounted for. What changes the world must be asked for by its own verb, or in nearly the words of a past plan.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from apps.plans import kinds, lexicon, sorts
from apps.plans.calibration import calibration_error
from apps.plans.catalogue import GENTLE_EFFECTS, Catalogue, Tool
from apps.plans.clauses import Clause, Reading, read
from apps.plans.history import KEPT, NEAREST, Heard, History, Looked, Past, Voiced, Without, log_odds
from apps.plans.ordering import best_path
from apps.plans.ranking import OF_ANOTHER_SORT, Candidate, Ranker
from apps.plans.sorts import Clash

ALTERNATIVES: Final = 3
_SHOWN: Final = 0.1
_POSSIBLE: Final = 0.35
_NOISE_WORDS: Final = 4
_BROUGHT_UP: Final = 6
_ACCOUNTED: Final = 0.15
_ALIKE: Final = 0.35
_AS_NEAR: Final = 0.5
"""How near a tool must be to a clause, beside the one that it is nearest to, to account for it as well."""
_BOLD: Final = 0.6
_HEARD: Final = 0.02
_SURE: Final = 0.7
_NEXT: Final = 0.8
_NOTHING: Final = lexicon.concept("nothing")
_KNOWN: Final = frozenset({"the", "its", "this", "that", "their", "these", "those"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A tool taken for a clause. One that is not `sure` is only shown, in the partial plan of a refusal."""

    tool: Tool
    clause: Clause
    p: float
    alternatives: tuple[Candidate, ...] = ()
    sure: bool = True


@dataclass(slots=True, kw_only=True)
class Choice:
    """What came of choosing for a request."""

    chosen: list[Chosen] = field(default_factory=list)
    wishes: list[Clause] = field(default_factory=list)
    remarks: list[tuple[str, Clause]] = field(default_factory=list)
    """What is assumed, each of a clause."""
    unmatched: list[tuple[Clause, Sequence[Candidate]]] = field(default_factory=list)
    rejected: list[float] = field(default_factory=list)
    confidence: float | None = None
    """How surely exactly these tools serve the request, where past plans tell."""

    def told_of(self, clauses: Sequence[Clause]) -> Choice:
        """The same choice for clauses of the same skeleton."""
        return replace(
            self,
            chosen=[replace(one, clause=clauses[one.clause.number]) for one in self.chosen],
            wishes=[clauses[clause.number] for clause in self.wishes],
            remarks=[(said, clauses[clause.number]) for said, clause in self.remarks],
            unmatched=[(clauses[clause.number], found) for clause, found in self.unmatched],
            rejected=list(self.rejected),
        )


class Memo:
    """What was chosen for requests of one skeleton, as long as the registry and what was learned stay as they are.

    Choosing looks at what a request names exactly only by its kind and sort, so requests that differ in nothing else choose alike.
    Not for several threads at once.
    """

    def __init__(self, most: int = 2_000) -> None:
        self._most = most
        self._stand: object = None
        self._known: OrderedDict[tuple[object, ...], Choice] = OrderedDict()

    def at(self, stand: object) -> Memo:
        """Forget everything if it was chosen by another state of things than this."""
        if stand != self._stand:
            self._stand = stand
            self._known.clear()
        return self

    def find(self, reading: Reading) -> Choice | None:
        known = self._known.get(_skeleton(reading))
        return None if known is None else known.told_of(reading.clauses)

    def keep(self, reading: Reading, choice: Choice) -> None:
        self._known[_skeleton(reading)] = choice.told_of(reading.clauses)
        if len(self._known) > self._most:
            self._known.popitem(last=False)


def _skeleton(reading: Reading) -> tuple[object, ...]:
    return (reading.text, *((span.kind, kinds.of_file(span.value), sorts.of_file(span)) for span in reading.spans))


def choose_tools(reading: Reading, ranker: Ranker, catalogue: Catalogue, *, begun: bool = False) -> Choice:
    """Choose for the clauses that ask for something; prohibitions are respected.

    :param begun: whether something of it has been done before.
    """
    asked = _asked(reading)
    work = _Words(ranker, catalogue, _ruled_out(reading), begun=begun)
    if ranker.history is None or not asked:
        for clause in asked:
            work.explain(clause)
        return work.choice
    return _Learned(work, ranker.history, reading.masked, asked).choose()


def _asked(reading: Reading) -> list[Clause]:
    return [clause for clause in reading.clauses if not clause.forbidden and not clause.conditional]


def _ruled_out(reading: Reading) -> frozenset[str]:
    return frozenset(clause.verb for clause in reading.clauses if clause.forbidden and clause.verb)


class _Words:
    """Choosing by the tools' own words, clause by clause."""

    def __init__(self, ranker: Ranker, catalogue: Catalogue, ruled_out: frozenset[str], *, begun: bool) -> None:
        self.ranker = ranker
        self.catalogue = catalogue
        self.ruled_out = ruled_out
        self.begun = begun
        self.choice = Choice()
        self.named: set[str] = set()

    def candidates(self, clause: Clause) -> list[Candidate]:
        """The tools that may be used for a clause, best first, none that the asker has ruled out."""
        found = self._open(clause)
        if clause.opening and clause.verb not in lexicon.MUTATING:
            found = max(found, self._open(replace(clause, rest=(*clause.rest, *clause.opening))), key=_best)
        if found and found[0].p >= KEPT:
            return found
        bare = self._without_results(clause)
        return found if bare is clause else max(self._open(bare), found, key=_best)

    def _open(self, clause: Clause) -> list[Candidate]:
        found = self.ranker.open(clause, self.catalogue, self._at_hand())
        return self._of_the_sort(
            clause, [one for one in found if self.ranker.profiles[one.tool.uid].action not in self.ruled_out]
        )

    def _of_the_sort(self, clause: Clause, found: list[Candidate]) -> list[Candidate]:
        """Those first that are for what the clause names: Python code, PDF documents."""
        telling = [one.tool for one in found if self.ranker.tells_sorts(one.tool)]
        named = sorts.of_wish(clause) if telling else ()
        certain = {tool.uid for tool in telling if _is_certain(self.ranker.clash(named, tool))}
        if not certain:
            return found
        weighed = [one._replace(p=min(one.p, OF_ANOTHER_SORT)) if one.tool.uid in certain else one for one in found]
        return sorted(weighed, key=lambda one: (-one.p, -one.score, one.tool.uid))

    def explain(self, clause: Clause, found: Sequence[Candidate] | None = None) -> None:
        """Account for a clause."""
        found = self.candidates(clause) if found is None else found
        self.named.update(kind for span in clause.spans if (kind := kinds.of_file(span.value)))
        if self._is_served(clause, found):
            self.choice.wishes.append(clause)
        elif found and found[0].p >= KEPT and not clause.circumstance:
            self._keep(clause, found)
        elif self.is_synthesis(clause):
            self.choice.wishes.append(clause)
        elif self.is_noise(clause):
            if clause.words:
                self.choice.remarks.append(("This asks for no tool of its own:", clause))
        else:
            self.choice.unmatched.append((clause, found))
            self._show(clause, found)

    def is_synthesis(self, clause: Clause) -> bool:
        """To sum up what earlier steps found needs no tool: the principal does it when it aggregates."""
        if not (self.choice.chosen or self.begun):
            return False
        if clause.verb in lexicon.SYNTHESIS:
            return not clause.spans
        makes = clause.verb in {"create", *lexicon.GENERIC}
        return makes and not clause.spans and bool(lexicon.SYNTHESIS.intersection(clause.head))

    def _is_served(self, clause: Clause, found: Sequence[Candidate]) -> bool:
        """Does the step before do this by its own word, or bear what is only asked to be shown? Nothing else is named then.

        What has a tool of its own is not served by one that merely speaks of it.
        """
        if not self.choice.chosen or clause.spans or not clause.head or clause.verb in {None, *lexicon.MUTATING}:
            return False
        tool = self.choice.chosen[-1].tool
        if clause.verb in lexicon.GENERIC:
            return set(clause.head) <= _borne(tool) and not clause.rest
        if found and found[0].p >= KEPT and found[0].tool.uid != tool.uid:
            return False
        return self.ranker.speaks_of(tool.uid, clause.concepts)

    def is_noise(self, clause: Clause) -> bool:
        """Does the clause only tell what there is, why, or when?"""
        if clause.circumstance:
            return True
        some = self.begun or bool(self.choice.chosen)
        if clause.verb is None:
            return bool(clause.spans) or (some and len(clause.head) + len(clause.rest) <= _NOISE_WORDS)
        return clause.verb in lexicon.GENERIC and not set(clause.head) - {_NOTHING} and some

    def _without_results(self, clause: Clause) -> Clause:
        """The clause without words that name the result of an earlier step.

        "The transcript" is named for an earlier step's action, "the text" as the last step's output names it. What such
        steps were about goes too ("the transcript of the interview").
        """
        results = {self.ranker.profiles[one.tool.uid].action for one in self.choice.chosen} - {clause.verb}
        if self.choice.chosen and all(span.kind == "email" for span in clause.spans):
            results |= _borne(self.choice.chosen[-1].tool) & _definite(clause)
        if not results.intersection(clause.head):
            return clause
        results |= {concept for one in self.choice.chosen for concept in one.clause.head}
        left = tuple(concept for concept in clause.head if concept not in results)
        return replace(clause, head=left, words=(*clause.words, "it"))

    def _at_hand(self) -> frozenset[str]:
        """The kinds of what the step before bears; before the first, of the files that were named."""
        chosen = self.choice.chosen
        return self.ranker.profiles[chosen[-1].tool.uid].gives if chosen else frozenset(self.named)

    def _keep(self, clause: Clause, found: Sequence[Candidate]) -> None:
        best, others = found[0], found[1 : 1 + ALTERNATIVES]
        self.choice.rejected.append(found[1].p if len(found) > 1 else 0.0)
        possible = tuple(one for one in others if one.p >= _POSSIBLE)
        self.choice.chosen.append(Chosen(tool=best.tool, clause=clause, p=best.p, alternatives=possible))

    def _show(self, clause: Clause, found: Sequence[Candidate]) -> None:
        """What comes nearest is shown in the partial plan of the refusal."""
        best = max(found, key=lambda one: (one.likely, one.score, one.tool.uid), default=None)
        if best is not None and best.likely >= _SHOWN:
            self.choice.chosen.append(Chosen(tool=best.tool, clause=clause, p=best.likely, sure=False))


def _is_certain(clash: Clash | None) -> bool:
    return clash is not None and clash.certain


def _best(found: Sequence[Candidate]) -> float:
    return found[0].p if found else 0.0


def _borne(tool: Tool) -> frozenset[str]:
    """What a tool bears, by the names in its output."""
    return frozenset(lexicon.concepts_of(tool.outputs))


def _definite(clause: Clause) -> frozenset[str]:
    """What a clause speaks of as of something known."""
    pairs = itertools.pairwise(clause.words)
    return frozenset(lexicon.concept(word) for before, word in pairs if before in _KNOWN)


class _Learned:
    """Choosing by what past plans say, and by words where they say nothing."""

    def __init__(
        self, words: _Words, history: History, masked: str, asked: Sequence[Clause], without: Without | None = None
    ) -> None:
        self.words = words
        self.history = history
        self.ranker = words.ranker
        self.asked = asked
        self.found = {clause.number: words.candidates(clause) for clause in asked}
        self.heard = history.hear(masked, [clause.masked for clause in asked], without)
        self.voices = _voices(self.ranker, words.catalogue, history, self.heard, self.found.values())
        self.odds = 0.0
        """The log-odds of what was taken."""

    def choose(self) -> Choice:
        """Take what past plans make likely, in their order; what they know nothing of is explained by words."""
        choice = self.take()
        choice.chosen = self._ordered(choice.chosen)
        return choice

    def take(self) -> Choice:
        """The same, part by part of the request."""
        voices = [one for one in self.voices if one.p >= _HEARD and self._is_open(one.uid)]
        taken = [one for one in voices if one.p >= KEPT and self._is_asked_for(one)]
        passed = sorted((one for one in voices if one not in taken), key=lambda one: (-one.p, one.uid))
        choice = self.words.choice
        choice.rejected.append(passed[0].p if passed else 0.0)
        self._weigh({one.uid: one.p for one in taken}, passed)
        near = self.nearness([one.uid for one in taken])
        homes = {one.uid: _home(self.asked, near, one.uid) for one in taken}
        for clause in self.asked:
            here = [one for one in taken if homes[one.uid] == clause.number]
            for one in sorted(here, key=lambda one: (-one.p, one.uid)):
                choice.chosen.append(self._chosen(one, clause, passed))
            if not here and not self._is_accounted_for(clause, near):
                self._explain_by_words(clause)
        self._show_what_is_nearest(passed)
        if len(choice.chosen) > len(taken):
            self._weigh({one.tool.uid: one.p for one in choice.chosen}, passed)
        return choice

    def _weigh(self, kept: Mapping[str, float], passed: Sequence[Voiced]) -> None:
        others = [one.p for one in passed if one.uid not in kept]
        self.odds = log_odds(kept.values(), others)
        self.words.choice.confidence = self.history.sureness(self.odds)

    def nearness(self, uids: Sequence[str]) -> dict[tuple[int, str], float]:
        """How near each of some tools is to each clause, by words and by past plans."""
        near = {}
        for clause, learned in zip(self.asked, self.history.affinities(self.heard, uids), strict=True):
            likely = {one.tool.uid: one.likely for one in self.found[clause.number]}
            near.update({(clause.number, uid): likely.get(uid, 0.0) + learned.get(uid, 0.0) for uid in uids})
        return near

    def _ordered(self, chosen: list[Chosen]) -> list[Chosen]:
        """As past plans ran them, unless something among them changes the world: then as they were mentioned."""
        offers = self.words.catalogue.open_offers
        if any(offer.effects - GENTLE_EFFECTS for one in chosen for offer in offers(one.tool.uid)):
            return chosen
        held = self.history.mention_holds

        def gain(one: Chosen, other: Chosen) -> float:
            ahead = other.clause.number - one.clause.number
            said = math.copysign(held, ahead) if ahead else 0.0
            return self.history.follows(one.tool.uid, other.tool.uid) + said + (_NEXT if ahead == 1 else 0.0)

        return best_path(chosen, gain, lambda one: self.history.opens(one.tool.uid))

    def _is_open(self, uid: str) -> bool:
        profile = self.ranker.profiles.get(uid)
        if profile is None or profile.action in self.words.ruled_out:
            return False
        return bool(self.words.catalogue.open_offers(uid))

    def _is_asked_for(self, one: Voiced) -> bool:
        """What changes the world needs its own verb, or nearly the words of a past plan."""
        if self.ranker.profiles[one.uid].gentle:
            return True
        if any(other.tool.uid == one.uid and other.p >= KEPT for others in self.found.values() for other in others):
            return True
        return one.p >= _BOLD and one.features[NEAREST] >= _ALIKE and self._may_be_meant(one.uid)

    def _may_be_meant(self, uid: str) -> bool:
        """Has some clause the tool's own verb, or one of which words don't tell what it means?"""
        action = self.ranker.profiles[uid].action
        verbs = {clause.verb for clause in self.asked if not clause.circumstance}
        return action in verbs or not verbs <= lexicon.UNDERSTOOD

    def _is_accounted_for(self, clause: Clause, near: Mapping[tuple[int, str], float]) -> bool:
        """Do past plans tie the clause to a tool that is taken anyway? What changes the world is never passed over so."""
        if clause.verb in lexicon.MUTATING:
            return False
        nearest: dict[str, float] = {}
        for (_, uid), value in near.items():
            nearest[uid] = max(nearest.get(uid, 0.0), value)
        here = {uid: value for (number, uid), value in near.items() if number == clause.number}
        if any(value >= max(_ACCOUNTED, _AS_NEAR * nearest[uid]) for uid, value in here.items()):
            return True
        if (self.words.choice.confidence or 0.0) >= _SURE:
            self.words.choice.remarks.append(("Past plans for such words had no tool of its own for:", clause))
            return True
        return False

    def _explain_by_words(self, clause: Clause) -> None:
        """Only tools that past plans do not know: of the others they have judged already."""
        fresh = [one for one in self.found[clause.number] if not self.history.knows(one.tool.uid, self.heard)]
        self.words.explain(clause, fresh)

    def _show_what_is_nearest(self, passed: Sequence[Voiced]) -> None:
        """A part that nothing serves is shown with what past plans hold likeliest, as it is with what words bring up."""
        choice = self.words.choice
        open_parts = {clause.number: clause for clause, _ in choice.unmatched}
        likely = [one for one in passed if open_parts and one.p >= _SHOWN and self._is_asked_for(one)]
        near = self.nearness([one.uid for one in likely]) if likely else {}
        for one in likely:
            clause = open_parts.pop(_home(self.asked, near, one.uid), None)
            if clause is not None and not any(shown.clause.number == clause.number for shown in choice.chosen):
                choice.chosen.append(replace(self._chosen(one, clause, ()), sure=False))

    def _chosen(self, one: Voiced, clause: Clause, passed: Sequence[Voiced]) -> Chosen:
        by_uid = self.words.catalogue.by_uid
        others = tuple(
            Candidate(tool=by_uid[other.uid], p=other.p, score=other.p)
            for other in passed[:ALTERNATIVES]
            if other.p >= _POSSIBLE
        )
        return Chosen(tool=by_uid[one.uid], clause=clause, p=one.p, alternatives=others)


def brought_up(found: Iterable[Sequence[Candidate]]) -> dict[str, float]:
    """How well tools fit by their own words: the best of each clause's best."""
    content: dict[str, float] = {}
    for candidates in found:
        for one in sorted(candidates, key=lambda one: (-one.likely, one.tool.uid))[:_BROUGHT_UP]:
            content[one.tool.uid] = max(content.get(one.tool.uid, 0.0), one.likely)
    return content


def look(plan: Past, ranker: Ranker, history: History, without: Without) -> Looked:
    """What a history says of one of its own requests, left out, what it would choose, and where in it the plan's tools are spoken of."""
    reading = read(plan.request)
    if not (asked := _asked(reading)):
        return Looked((), {}, None)
    work = _Learned(
        _Words(ranker, ranker.catalogue, _ruled_out(reading), begun=False), history, reading.masked, asked, without
    )
    near = work.nearness(plan.tools)
    homes = {uid: _home(asked, near, uid) for uid in plan.tools}
    if not all(ranker.catalogue.open_offers(uid) for uid in plan.tools):
        return Looked(work.voices, homes, None)
    taken = {one.tool.uid for one in work.take().chosen}
    return Looked(work.voices, homes, (work.odds, taken == set(plan.tools)))


def _home(asked: Sequence[Clause], near: Mapping[tuple[int, str], float], uid: str) -> int:
    """The clause that a tool is nearest to, the first of equal ones."""
    return max(asked, key=lambda clause: (round(near[clause.number, uid], 4), -clause.number)).number


def _voices(
    ranker: Ranker, catalogue: Catalogue, history: History, heard: Heard, found: Iterable[Sequence[Candidate]]
) -> list[Voiced]:
    """What history says of the tools that the words bring up, and of those whose names past plans lead to."""
    content = brought_up(found)
    words = history.words(heard, ranker.name)
    for said in words.sayings():
        for uid in ranker.speaking_of(said, catalogue):
            content.setdefault(uid, 0.0)
    return history.voices(heard, content, words, ranker.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """How well tools are chosen: the micro F1, and how far on average the confidence lies from how often a choice is right."""

    node_f1: float
    calibration_error: float


def judge(plans: Sequence[Past], history: History | None, ranker: Ranker) -> Judged:
    """Hold what would be chosen with a history against the tools that were used."""
    right = said = meant = 0
    told: list[tuple[float, bool]] = []
    aside = copy.copy(ranker)
    aside.history = history
    for plan in plans:
        choice = choose_tools(read(plan.request), aside, aside.catalogue)
        chosen, used = {one.tool.uid for one in choice.chosen}, set(plan.tools)
        right, said, meant = right + len(chosen & used), said + len(chosen), meant + len(used)
        told.append((choice.confidence or 0.0, chosen == used))
    return Judged(
        node_f1=round(2 * right / max(said + meant, 1), 4), calibration_error=round(calibration_error(told), 4)
    )
