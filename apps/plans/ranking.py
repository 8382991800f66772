"""Which tools could serve a clause: a cold ranker that knows only words, with fixed conservative weights.

A tool must share the clause's verb or its matter, not merely score best among strangers; one that changes the world must be asked
for by its own verb. Barred tools are never ranked beside open ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from apps.core.lexical import Index, words
from apps.plans import lexicon
from apps.plans.catalogue import GENTLE_EFFECTS, Catalogue, Tool
from apps.plans.clauses import Clause

KEPT: Final = 0.5
"""A tool below this serves no clause."""

_FIELD_WEIGHTS: Final = {"name": 3.0, "description": 1.0, "params": 0.5, "tags": 1.5}
_POOL: Final = 20
_BIAS, _VERB, _COVER, _NAME = -4.4, 2.6, 3.4, 1.6
_STRANGE_CAP: Final = 0.2
_MUTATING_COVER: Final = 0.6
_ANAPHORA_COVER: Final = 0.6
_UNSAID_VERB: Final = 0.55
_LEADING_VERB: Final = 0.9
_MENTIONED_VERB: Final = 0.35
_HEAD_SHARE: Final = 0.7

_VERB_FAMILIES: Final = frozenset(lexicon.FAMILY_OF_VERB.values())
_SPAN_CONCEPTS: Final = {"path": ("directory", "file"), "url": ("webpage", "url"), "email": ("email",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A tool that may serve a clause, with the probability that it does."""

    tool: Tool
    p: float
    score: float


@dataclass(frozen=True, slots=True)
class Profile:
    """What a tool says of itself, as concepts."""

    name: frozenset[str]
    action: str | None
    leads: frozenset[str]
    spoken: frozenset[str]
    gentle: bool


class Ranker:
    """Ranks the tools of one catalogue. Built once for each registry epoch, and never changed."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        tags = {tool.uid: _tags(tool, catalogue) for tool in catalogue.tools}
        fields = {tool.uid: _fields(tool, tags[tool.uid]) for tool in catalogue.tools}
        self.profiles = {tool.uid: _profile(tool, fields[tool.uid], catalogue) for tool in catalogue.tools}
        self._index = Index(fields, _FIELD_WEIGHTS)

    @cached_property
    def _ceiling(self) -> float:
        return self._index.idf("") or 1.0

    def open(self, clause: Clause, catalogue: Catalogue) -> list[Candidate]:
        """Return the tools that may be used for a clause now, best first."""
        return self._rank(clause, {tool.uid for tool in self.catalogue.tools if catalogue.open_offers(tool.uid)})

    def barred(self, clause: Clause, catalogue: Catalogue) -> list[Candidate]:
        """Return the tools that nobody may run now, best first: what a refusal can name."""
        return self._rank(clause, {tool.uid for tool in self.catalogue.tools if not catalogue.open_offers(tool.uid)})

    def _rank(self, clause: Clause, allowed: set[str]) -> list[Candidate]:
        hits = self._index.search(clause.concepts, limit=_POOL, where=allowed.__contains__)
        found = [
            Candidate(tool=self.catalogue.by_uid[hit.key], p=self.probability(clause, hit.key), score=hit.relevance)
            for hit in hits
        ]
        return sorted(found, key=lambda candidate: (-candidate.p, -candidate.score, candidate.tool.uid))

    def probability(self, clause: Clause, uid: str) -> float:
        """Return how likely a tool serves a clause, by words alone."""
        profile = self.profiles[uid]
        cover = self._cover(clause, profile)
        verb = _verb_match(clause.verb, profile)
        spoken = clause.concepts.union(*(_SPAN_CONCEPTS.get(span.kind, ()) for span in clause.spans))
        named = len(profile.name & spoken) / len(profile.name) if profile.name else 0.0
        p = 1 / (1 + math.exp(-(_BIAS + _VERB * verb + _COVER * cover + _NAME * named)))
        return round(min(p, _STRANGE_CAP) if _is_strange(clause, profile, cover) else p, 4)

    def _cover(self, clause: Clause, profile: Profile) -> float:
        if not clause.head and not clause.rest:
            return _ANAPHORA_COVER
        whole = self._share((*clause.head, *clause.rest), profile.spoken)
        head = self._share(clause.head, profile.spoken) if clause.head else whole
        return _HEAD_SHARE * head + (1 - _HEAD_SHARE) * whole

    def _share(self, terms: Iterable[str], spoken: frozenset[str]) -> float:
        weights = {term: 1 + self._index.idf(term) / self._ceiling for term in sorted(set(terms))}
        return math.fsum(weight for term, weight in weights.items() if term in spoken) / math.fsum(weights.values())


def _verb_match(verb: str | None, profile: Profile) -> float:
    if verb is None or verb in lexicon.GENERIC:
        return _UNSAID_VERB
    if verb == profile.action:
        return 1.0
    if verb in profile.leads:
        return _LEADING_VERB
    return _MENTIONED_VERB if verb in profile.spoken else 0.0


def _is_strange(clause: Clause, profile: Profile, cover: float) -> bool:
    """A clause that changes the world and a tool that does, belong together only by the same verb and nearly all of the matter."""
    if clause.verb in lexicon.MUTATING:
        return clause.verb != profile.action or cover < _MUTATING_COVER
    if profile.gentle:
        return False
    runs_it = profile.action == "execute" and clause.verb in profile.name
    return not (clause.verb == profile.action or runs_it) or cover < _MUTATING_COVER


def _tags(tool: Tool, catalogue: Catalogue) -> list[str]:
    offered = {tag for offer in catalogue.offers_by_uid.get(tool.uid, ()) for tag in offer.capabilities}
    return lexicon.concepts_of([*sorted(offered), *tool.outputs])


def _fields(tool: Tool, tags: list[str]) -> Mapping[str, list[str]]:
    described = [str(schema.get("description", "")) for schema in tool.inputs.values() if isinstance(schema, Mapping)]
    return {
        "name": lexicon.concepts(tool.name),
        "description": lexicon.concepts(tool.description),
        "params": lexicon.concepts_of([*tool.inputs, *described]),
        "tags": tags,
    }


def _profile(tool: Tool, fields: Mapping[str, list[str]], catalogue: Catalogue) -> Profile:
    opening = [lexicon.concept(word) for word in words(tool.description)[:1]]
    name = [lexicon.verb(word) or lexicon.concept(word) for word in words(tool.name)[:1]] + fields["name"]
    verbs = [found for found in (*name, *opening) if found in _VERB_FAMILIES]
    action = verbs[0] if verbs else None
    effects = frozenset().union(*(offer.effects for offer in catalogue.offers_by_uid.get(tool.uid, ())))
    return Profile(
        name=frozenset(fields["name"]),
        action=action,
        leads=frozenset(verbs),
        spoken=frozenset(term for terms in fields.values() for term in terms),
        gentle=effects <= GENTLE_EFFECTS and action not in lexicon.MUTATING,
    )
