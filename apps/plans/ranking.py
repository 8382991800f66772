"""Which tools could serve a clause, by words alone: a cold ranker with fixed conservative weights.

A tool must share the clause's verb or its matter, not merely score best among strangers; one that changes the world must be asked
for by its own verb. Who may not be used is left out before anything is ranked.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from apps.core.lexical import words
from apps.plans import kinds, lexicon, sorts
from apps.plans.catalogue import GENTLE_EFFECTS, Catalogue, Pool, Tool
from apps.plans.clauses import Clause
from apps.plans.history import History
from apps.plans.lexindex import Field, Ids, LexIndex, Marks, Mask
from apps.plans.sorts import Clash, Sort, Sorts

Shares = NDArray[np.float64]


_NAME, _DESCRIPTION, _PARAMS, _TAGS, _LEAD = 1, 2, 4, 8, 16
_SPOKEN: Final = _NAME | _DESCRIPTION | _PARAMS | _TAGS
_TOLD: Final = _NAME | _DESCRIPTION | _TAGS
"""Where a tool says what it does: what changes the world is not asked for by the name of a param."""
_FIELDS: Final = {
    "name": Field(3.0, 3, _NAME),
    "description": Field(1.0, 14, _DESCRIPTION),
    "params": Field(0.5, 6, _PARAMS),
    "tags": Field(1.5, 4, _TAGS),
    "leads": Field(0.0, 1, _LEAD),
}
_POOL: Final = 20
_BIAS, _VERB, _COVER, _SAID, _KIND = -4.4, 2.6, 3.4, 1.6, 0.8
_EXACT: Final = 0.6
_OTHER_NAMES: Final = -2.5
OF_ANOTHER_SORT: Final = 0.2
"""How likely a tool is at most that is for another sort of things than the one that is named."""
_STRANGE_CAP: Final = 0.2
_MUTATING_COVER: Final = 0.6
_ANAPHORA_COVER: Final = 0.6
_FILE_COVER: Final = 0.5
_UNSAID_VERB: Final = 0.55
_KIN_VERB: Final = 0.6
_LEADING_VERB: Final = 0.9
_MENTIONED_VERB: Final = 0.35
_LONE_VERB: Final = 0.7
_HEAD_SHARE: Final = 0.7
_RESULT_WORDS: Final = 4
_MANY_GIVERS: Final = 60
_FEW: Final = 6

_SPAN_CONCEPTS: Final = {"path": ("directory", "file"), "url": ("webpage", "url"), "email": ("email",)}
_INTO: Final = frozenset({"into", "to", "as"})
_MAKING: Final = frozenset({"create", "fetch", *lexicon.GENERIC})
_ANAPHORA: Final = frozenset({"it", "that", "this", "them", "these", "those", "result", "results", "output", "outcome"})
_MISFIT: Final = -1.5
_VALUE: Final = 0.15


class Candidate(NamedTuple):
    """A tool that may serve a clause, with the probability that it does.

    `likely` is how well the words fit before caution: what a plan may not rest on, but a partial plan may show.
    """

    tool: Tool
    p: float
    score: float
    likely: float = 0.0


@dataclass(frozen=True, slots=True)
class Profile:
    """What the ranker keeps of a tool beside its words: its verb, and the kinds of matter that go in and come out."""

    action: str | None
    name: frozenset[str]
    gentle: bool
    takes: frozenset[str]
    gives: frozenset[str]
    asks: bool
    """Does it take a wish or a question in plain words?"""
    names: frozenset[str]
    """The kinds of exact names that it needs: path, url, email."""


@dataclass(frozen=True, slots=True)
class _Wish:
    """A clause as it is held against tools."""

    clause: Clause
    terms: tuple[str, ...]
    head: tuple[str, ...]
    spoken: frozenset[str]
    has: frozenset[str]
    files: frozenset[str]
    """The media that files of certain kinds hold: what else they are called is a name."""
    wants: frozenset[str]
    exact: frozenset[str]
    """What kinds of things are named exactly: path, url, email."""


class Ranker:
    """Ranks the tools of one catalogue, and follows it."""

    def __init__(self, catalogue: Catalogue, history: History | None = None) -> None:
        self.catalogue = catalogue
        self.history = history
        self.index = LexIndex(_FIELDS)
        self.profiles: dict[str, Profile] = {}
        self.givers: defaultdict[str, set[str]] = defaultdict(set)
        self._gives: dict[str, frozenset[str]] = {}
        self._sorts: dict[str, Sorts] = {}
        self._open: Mask = np.zeros(self.index.size, dtype=np.bool_)
        self._open_in: WeakKeyDictionary[Pool, Mask] = WeakKeyDictionary()
        self.refresh(catalogue.by_uid)
        self.index.merge()

    def refresh(self, uids: Iterable[str]) -> None:
        """Take in what the catalogue now says of these tools."""
        self._open_in.clear()
        for uid in sorted(uids):
            tool = self.catalogue.by_uid.get(uid)
            self._forget(uid)
            if tool is not None:
                self._learn(tool)

    def _forget(self, uid: str) -> None:
        self.index.drop(uid)
        self.profiles.pop(uid, None)
        self._sorts.pop(uid, None)
        for key in self._gives.pop(uid, ()):
            self.givers[key].discard(uid)

    def _learn(self, tool: Tool) -> None:
        tags = _tags(tool, self.catalogue)
        fields = _fields(tool, tags)
        doc = self.index.put(tool.uid, fields)
        if self.index.size > len(self._open):
            self._open = np.concatenate([self._open, np.zeros(self.index.size - len(self._open), dtype=np.bool_)])
        self._open[doc] = bool(self.catalogue.open_offers(tool.uid))
        self.profiles[tool.uid] = _profile(tool, fields, self.catalogue)
        self._gives[tool.uid] = frozenset(key for name in tool.outputs for key in _keys(name))
        for key in self._gives[tool.uid]:
            self.givers[key].add(tool.uid)

    def name(self, uid: str) -> frozenset[str]:
        """The concepts of a tool's name; none if there is no such tool."""
        profile = self.profiles.get(uid)
        return profile.name if profile else frozenset()

    def tells_sorts(self, tool: Tool) -> bool:
        """Is a tool for some sorts of things, by its own word?"""
        return bool(self._sorts_of(tool).own)

    def clash(self, wish: Sequence[Sort], tool: Tool, given: str = "") -> Clash | None:
        """Where a wish names another sort of thing than a tool is for; certain as well where another tool is for that one.

        :param given: what the wish names exactly.
        """
        found = sorts.clash(wish, self._sorts_of(tool), given) if wish else None
        if found is None or found.certain or not self._is_told_apart(found.sort):
            return found
        return found._replace(certain=True)

    def _sorts_of(self, tool: Tool) -> Sorts:
        """Read when it is first asked for: few requests name a sort."""
        found = self._sorts.get(tool.uid)
        if found is None:
            found = sorts.of_tool(tool, _tags(tool, self.catalogue))
            if tool.uid in self.profiles:
                self._sorts[tool.uid] = found
        return found

    def _is_told_apart(self, sort: Sort) -> bool:
        """Is any tool of the catalogue for just this sort of such things?"""
        near = self.index.search([lexicon.concept(sort.word)], limit=_POOL)
        tools = (self.catalogue.by_uid[self.index.key(doc)] for doc in near.docs.tolist())
        return any(sorts.names(self._sorts_of(tool), sort) for tool in tools)

    def speaks_of(self, uid: str, terms: Iterable[str]) -> bool:
        """Does a tool speak of all these terms?"""
        doc = self.index.number(uid)
        if doc is None:
            return False
        marks = self.index.marks(sorted(set(terms)), np.array([doc], dtype=np.int32))
        return bool(((marks & _TOLD) > 0).all())

    def speaking_of(self, terms: Sequence[str], catalogue: Catalogue) -> list[str]:
        """The uids of the few tools that may be used now and speak of these terms most."""
        if not terms:
            return []
        near = self.index.search(terms, limit=_FEW, allowed=self._allowed(catalogue))
        return [self.index.key(doc) for doc in near.docs.tolist()]

    def producers(self, param: str, clauses: Iterable[Clause], catalogue: Catalogue) -> list[Tool]:
        """Tools that may be used now and whose output could stand for a param, by its name, its kind or its matter."""
        uids = set().union(*(self.givers.get(key, ()) for key in _keys(param)))
        if param.rpartition("_")[2] in lexicon.POINTERLIKE or len(uids) > _MANY_GIVERS:
            said = {term for clause in clauses for term in clause.concepts} | set(lexicon.concepts(param))
            near = self.index.search(said, limit=_MANY_GIVERS, allowed=self._allowed(catalogue))
            found = {self.index.key(doc) for doc in near.docs.tolist()}
            uids = (uids & found or set(sorted(uids)[:_MANY_GIVERS])) | found
        return [self.catalogue.by_uid[uid] for uid in sorted(uids) if catalogue.open_offers(uid)]

    def open(self, clause: Clause, catalogue: Catalogue, at_hand: frozenset[str] = frozenset()) -> list[Candidate]:
        """Return the tools that may be used for a clause now, best first.

        :param at_hand: the kinds of matter that the step before bears.
        """
        return self._rank(_wish(clause, at_hand), self._allowed(catalogue))

    def barred(self, clause: Clause, catalogue: Catalogue) -> list[Candidate]:
        """Return the tools that nobody may run now, best first: what a refusal can name."""
        return self._rank(_wish(clause, frozenset()), ~self._allowed(catalogue))

    def _allowed(self, catalogue: Catalogue) -> Mask:
        """Who may be used, decided before anything is ranked."""
        allowed = self._open if catalogue.pool is None else self._open_within(catalogue.pool)
        aside = catalogue.set_aside()
        return self._closed(allowed, aside, catalogue) if aside else allowed

    def _open_within(self, pool: Pool) -> Mask:
        """What of a pool may be used, looked up once for as long as nothing changes."""
        found = self._open_in.get(pool)
        if found is None:
            others = frozenset[str]().union(*(self.catalogue.tools_of(worker_id) for worker_id in pool.outside))
            found = self._open_in[pool] = self._closed(self._open, others, self.catalogue.within(pool))
        return found

    def _closed(self, allowed: Mask, uids: Iterable[str], catalogue: Catalogue) -> Mask:
        """Without those of these tools that nobody in this view may run."""
        left = allowed.copy()
        for uid in uids:
            doc = self.index.number(uid)
            if doc is not None and not catalogue.open_offers(uid):
                left[doc] = False
        return left

    def _rank(self, wish: _Wish, allowed: Mask) -> list[Candidate]:
        matches = self.index.search(wish.terms, limit=_POOL, allowed=allowed)
        probabilities = self._probabilities(wish, matches.terms, matches.docs, matches.marks)
        found = [
            Candidate(tool=self.catalogue.by_uid[self.index.key(doc)], p=p, score=score, likely=likely)
            for doc, score, (p, likely) in zip(
                matches.docs.tolist(), matches.scores.tolist(), probabilities, strict=True
            )
        ]
        return sorted(found, key=lambda candidate: (-candidate.p, -candidate.score, candidate.tool.uid))

    def probability(self, clause: Clause, uid: str) -> float:
        """Return how likely a tool serves a clause, by words alone."""
        doc = self.index.number(uid)
        if doc is None:
            return 0.0
        wish, docs = _wish(clause, frozenset()), np.array([doc], dtype=np.int32)
        terms = tuple(sorted(set(wish.terms)))
        return self._probabilities(wish, terms, docs, self.index.marks(terms, docs))[0][0]

    def _probabilities(self, wish: _Wish, terms: Sequence[str], docs: Ids, marks: Marks) -> list[tuple[float, float]]:
        weights = np.array([self._weight(term, wish) for term in terms])
        place = {term: number for number, term in enumerate(terms)}
        spoken = (marks & _SPOKEN) > 0
        whole = _shares(
            [place[term] for term in wish.terms if term in place and term != wish.clause.verb], weights, spoken
        )
        head = _shares([place[term] for term in wish.head], weights, spoken) if wish.head else whole
        covers = _HEAD_SHARE * head + (1 - _HEAD_SHARE) * whole
        sought = [place[term] for term in wish.clause.sought if term in place]
        matter = [place[term] for term in wish.head]
        verb = place.get(wish.clause.verb or "")
        lone = not wish.clause.head and not wish.clause.rest
        columns = zip(
            docs.tolist(),
            covers.tolist(),
            marks[verb].tolist() if verb is not None else [0] * len(docs),
            _met(sought, spoken),
            _met(matter, (marks & _TOLD) > 0),
            strict=True,
        )
        found = []
        for doc, cover, mark, finds, told in columns:
            profile = self.profiles[self.index.key(doc)]
            able = (finds or profile.asks) and (told or profile.gentle)
            covered = _ANAPHORA_COVER * (bool(mark) or _exact_fit(wish, profile) > 0) if lone else cover
            if wish.files & profile.takes and _is_meant(wish, profile):
                covered = max(covered, _FILE_COVER)
            found.append(_probability(wish, profile, covered, mark, able=able))
        return found

    def _weight(self, term: str, wish: _Wish) -> float:
        """How much it counts that a tool speaks of a term: the rarer the more, names and times only where tools know them."""
        if term in wish.clause.values and not self.index.count(term):
            return _VALUE
        return 1 + self.index.idf(term) / (self.index.idf("") or 1.0)


def _keys(name: str) -> Iterator[str]:
    """By what a param and an output field may find each other."""
    yield from lexicon.concepts(name)
    kind = kinds.of_name(name)
    if kind is not None:
        yield f"kind:{kind}"


def _probability(wish: _Wish, profile: Profile, cover: float, verb_mark: int, *, able: bool) -> tuple[float, float]:
    named = len(profile.name & wish.spoken) / len(profile.name) if profile.name else 0.0
    z = _BIAS + _VERB * _verb_match(wish, profile, verb_mark) + _COVER * cover + _SAID * named
    z += _KIND * _kind_fit(wish, profile) + _EXACT * _exact_fit(wish, profile)
    p = round(1 / (1 + math.exp(-z)), 4)
    strange = not able or _is_strange(wish.clause, profile, cover)
    return (min(p, _STRANGE_CAP) if strange else p), p


def _is_meant(wish: _Wish, profile: Profile) -> bool:
    """Does the verb say what the tool does with such a file, or a question what it finds there?"""
    if wish.clause.verb is None:
        return bool(wish.wants & profile.gives)
    return profile.action == wish.clause.verb


def _exact_fit(wish: _Wish, profile: Profile) -> float:
    """Does the tool need a link, a path or an address as the clause names one? It helps where the verb says little, and a tool
    that needs one where only others are named is another one.
    """
    if not profile.names or not wish.exact:
        return 0.0
    if not profile.names & wish.exact:
        return _OTHER_NAMES
    verb = wish.clause.verb
    return float(verb is None or verb in lexicon.GENERIC or profile.action in lexicon.KIN.get(verb, ()))


def _shares(rows: Sequence[int], weights: Shares, spoken: Mask) -> Shares:
    """For each document, which share of the terms' weight it speaks of."""
    if not rows:
        return np.zeros(spoken.shape[1])
    chosen = weights[rows]
    found: Shares = (chosen[:, None] * spoken[rows]).sum(axis=0) / chosen.sum()
    return found


def _met(rows: Sequence[int], spoken: Mask) -> list[bool]:
    """For each document, does it speak of one of the terms, if there are any?"""
    met: Mask = np.logical_or.reduce(spoken[rows]) if rows else np.ones(spoken.shape[1], dtype=np.bool_)
    found: list[bool] = met.tolist()
    return found


def _wish(clause: Clause, at_hand: frozenset[str]) -> _Wish:
    terms = tuple(sorted({*clause.head, *clause.rest, *([clause.verb] if clause.verb else []), *_implied(clause)}))
    wants = _wanted(clause)
    return _Wish(
        clause=clause,
        terms=terms,
        head=tuple(sorted(set(clause.head))),
        spoken=clause.concepts.union(*(_SPAN_CONCEPTS.get(span.kind, ()) for span in clause.spans)),
        has=_had(clause, wants, at_hand),
        files=_files(clause) & kinds.MEDIA,
        wants=wants,
        exact=frozenset(span.kind for span in clause.spans if span.kind in _SPAN_CONCEPTS),
    )


def _implied(clause: Clause) -> tuple[str, ...]:
    """Where a link is all that a verb is about, a page is meant."""
    lone = not clause.head and not clause.rest
    return ("webpage",) if lone and any(span.kind == "url" for span in clause.spans) else ()


def _wanted(clause: Clause) -> frozenset[str]:
    """The kinds that a clause asks for: those named right after "into" or "to", or what it wants made."""
    for place, word in enumerate(clause.words):
        if word in _INTO and (found := kinds.of_words(clause.words[place + 1 : place + 1 + _RESULT_WORDS])):
            return found
    if clause.verb is None and clause.asks:
        return kinds.of_words((*clause.head, *clause.rest)) - _files(clause)
    return kinds.of_words(clause.head) if clause.verb in _MAKING else frozenset()


def _had(clause: Clause, wants: frozenset[str], at_hand: frozenset[str]) -> frozenset[str]:
    """The kinds that a clause works on: those of its files, else those it names, else what the step before bears."""
    if files := _files(clause):
        return files
    named = kinds.of_words((*clause.head, *clause.rest)) & kinds.KNOWN
    quoted = frozenset({kinds.TEXT} if any(span.kind == "quoted" for span in clause.spans) else ())
    if (named - wants) | quoted:
        return (named - wants) | quoted
    return at_hand if _ANAPHORA.intersection(clause.words) else frozenset()


def _files(clause: Clause) -> frozenset[str]:
    return frozenset(kind for span in clause.spans if (kind := kinds.of_file(span.value)))


def _kind_fit(wish: _Wish, profile: Profile) -> float:
    """Does the tool take what the clause has, and give what it asks for? Kinds that are unsaid neither help nor harm."""
    fit = 0.0
    if wish.has and profile.takes:
        lacking = (profile.takes & kinds.MEDIA) - wish.has
        fit += 1.0 if wish.has & profile.takes and not lacking else _MISFIT
    if wish.wants and profile.gives:
        fit += 1.0 if wish.wants & profile.gives else _MISFIT
    return fit


def _verb_match(wish: _Wish, profile: Profile, mark: int) -> float:
    verb = wish.clause.verb
    if verb is None or verb in lexicon.GENERIC:
        return _LEADING_VERB if wish.clause.asks and profile.action == "answer" else _UNSAID_VERB
    if verb == profile.action:
        return 1.0
    if mark & _LEAD or (verb == "convert" and wish.has & profile.takes and wish.wants & profile.gives):
        return _LEADING_VERB
    if profile.action in lexicon.KIN.get(verb, ()) and profile.name - {profile.action} <= wish.spoken:
        return _KIN_VERB
    if not mark & _SPOKEN:
        return 0.0
    lone = not wish.clause.head and not wish.clause.rest
    return _LONE_VERB if lone else _MENTIONED_VERB if verb in lexicon.FAMILIES else _UNSAID_VERB


def _is_strange(clause: Clause, profile: Profile, cover: float) -> bool:
    """A clause that changes the world and a tool that does, belong together only by the same verb and nearly all of the matter."""
    if clause.verb in lexicon.MUTATING:
        return clause.verb != profile.action or cover < _MUTATING_COVER
    if profile.gentle:
        return False
    runs_it = profile.action == "execute" and clause.verb in profile.name
    return not (clause.verb == profile.action or runs_it) or cover < _MUTATING_COVER


def _tags(tool: Tool, catalogue: Catalogue) -> list[str]:
    offered = {tag for offer in catalogue.offers_of(tool.uid) for tag in offer.capabilities}
    return lexicon.concepts_of([*sorted(offered), *tool.outputs])


def _fields(tool: Tool, tags: list[str]) -> Mapping[str, list[str]]:
    described = [str(schema.get("description", "")) for schema in tool.inputs.values() if isinstance(schema, Mapping)]
    name = lexicon.concepts(tool.name)
    return {
        "name": name,
        "description": lexicon.concepts(tool.description),
        "params": lexicon.concepts_of([*tool.inputs, *described]),
        "tags": tags,
        "leads": _verbs(tool, name),
    }


def _exact_kind(tool: Tool, param: str) -> str | None:
    schema = tool.inputs.get(param)
    return lexicon.exact_kind(words(param), str(schema.get("format", "")) if isinstance(schema, Mapping) else "")


def _verbs(tool: Tool, name: Sequence[str]) -> list[str]:
    """The verbs that a tool's name says and that its description opens with, its own first."""
    opening = [lexicon.concept(word) for word in words(tool.description)[:1]]
    own = [lexicon.verb(word) or lexicon.concept(word) for word in words(tool.name)[:1]]
    return [found for found in (*own, *name, *opening) if found in lexicon.FAMILIES]


def _profile(tool: Tool, fields: Mapping[str, list[str]], catalogue: Catalogue) -> Profile:
    action = next(iter(fields["leads"]), None)
    effects = frozenset().union(*(offer.effects for offer in catalogue.offers_of(tool.uid)))
    return Profile(
        action=action,
        name=frozenset(fields["name"]),
        gentle=effects <= GENTLE_EFFECTS and action not in lexicon.MUTATING,
        takes=kinds.of_schema(tool.inputs, tool.required),
        gives=kinds.of_schema(tool.outputs, tool.outputs),
        asks=any(words(name)[-1:] and words(name)[-1] in lexicon.ASKING for name in tool.inputs),
        names=frozenset(kind for name in tool.required if (kind := _exact_kind(tool, name)) is not None),
    )
