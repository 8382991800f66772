"""The tools of a tenant, ready to search: BM25 over an index that grows and shrinks tool by tool.

The answer of a search depends on the tools alone, never on their order. Documents are weighed against a typical length, terms
are summed in sorted order, and ties go by key.
"""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from heapq import nsmallest
from typing import Final

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import OSA

from apps.core.lexical import K1, B
from apps.plans.catalogue import Tool
from apps.plans.local.params import UNNAMING, Param, params_of
from apps.plans.local.values import read
from apps.plans.local.words import ACTS, COMMON, GROUPS, PHRASES, SMALL, VERBS, clusters, near, pieces, prose, stem

_PLACES: Final = 5
# Of the tools that a model is shown: the nearest, and those of them whose ids are looked for.
_NEAREST, _ASKING = 10, 4
LOOKED_UP: Final = frozenset({"id", "email", "user", "phone", "channel", "slug", "path"})
"""Roles whose values people look up by a name."""
_SURE, _SYNONYM, _SYNONYM_WEIGHT = 0.85, 0.75, 0.6
_SENTENCE, _OPENING, _TYPICAL = 16, 40, 30
"""So many words at the beginning of a description say what the tool does; the others are details and examples."""
_LEAST_REPAIRED, _LONG, _TWO_EDITS = 4, 7, 9
"""Words of so many letters are repaired where two letters changed places; longer ones also lack one; long ones have a wrong one."""
_UNNAMED: Final = (
    GROUPS["question"] | GROUPS["be"] | {"to", "of", "from", "by", "for", "on", "off", "in", "at", "and", "with"}
)
"""Words of a name that say neither what the tool does nor what it works on."""
_PREFIXED: Final = re.compile(r"([A-Za-z]{1,8})(?:-[A-Z]{1,8})?[_-](?=\w*\d)")
"""The beginning of an id, with letters for what it is of."""
WAYS: Final = frozenset({"on", "off", "in", "out", "up", "down"})
_DOUBLED: Final = re.compile(r"(.)\1+")
_LOOKED_AT: Final = 30
_NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
_WASTE: Final = 1_000
"""So many removed documents may keep their place in the postings before the index is built anew."""


@dataclass(slots=True)
class _Postings:
    """The documents of one term, by number, and how much the term tells in each."""

    docs: array[int] = field(default_factory=lambda: array("i"))
    impacts: array[float] = field(default_factory=lambda: array("f"))
    count: int = 0
    """How many of the documents are still there."""


class Index:
    """Documents by key, each a mapping from terms to weighted frequencies. Not for several threads at once."""

    def __init__(self) -> None:
        self._postings: dict[str, _Postings] = {}
        self._numbers: dict[str, int] = {}
        self._keys: list[str] = []
        self._terms: dict[int, tuple[str, ...]] = {}
        self._live: NDArray[np.bool_] = np.zeros(1024, dtype=np.bool_)

    def put(self, key: str, document: Mapping[str, float]) -> None:
        """Add a document, or replace the one of this key."""
        self.remove(key)
        number = len(self._keys)
        self._keys.append(key)
        self._numbers[key] = number
        if number >= len(self._live):
            self._live = np.concatenate([self._live, np.zeros_like(self._live)])
        self._live[number] = True
        self._terms[number] = tuple(document)
        for term, frequency in document.items():
            postings = self._postings.setdefault(term, _Postings())
            postings.docs.append(number)
            postings.impacts.append(frequency / (K1 + frequency))
            postings.count += 1

    def remove(self, key: str) -> None:
        """Take a document out, if it is there."""
        number = self._numbers.pop(key, None)
        if number is not None:
            self._live[number] = False
            for term in self._terms.pop(number):
                self._postings[term].count -= 1

    @property
    def is_stale(self) -> bool:
        """Do removed documents take more room than those that are left?"""
        return len(self._keys) - len(self._numbers) > max(_WASTE, len(self._numbers))

    def has(self, term: str) -> bool:
        """Does any document have this term?"""
        found = self._postings.get(term)
        return found is not None and found.count > 0

    def idf(self, term: str) -> float:
        """How much a term tells; one that no document has tells the most."""
        found = self._postings.get(term)
        having = 0 if found is None else found.count
        return math.log(1 + (len(self._numbers) - having + 0.5) / (having + 0.5))

    def search(self, query: Mapping[str, float], limit: int) -> list[tuple[str, float]]:
        """Return the best documents with their scores, best first, ties by key.

        :param query: how much each term counts.
        """
        scores: NDArray[np.float32] = np.zeros(len(self._keys), dtype=np.float32)
        for term in sorted(query):
            postings = self._postings.get(term)
            if postings is not None and postings.count:
                docs = np.frombuffer(postings.docs, dtype=np.int32)
                impacts = np.frombuffer(postings.impacts, dtype=np.float32)
                scores[docs] += np.float32(query[term] * self.idf(term)) * impacts
        scores *= self._live[: len(scores)]
        found = np.flatnonzero(scores > 0)
        rounded = np.round(scores[found].astype(np.float64), _PLACES)
        if len(found) > limit:
            least = np.partition(rounded, len(found) - limit)[len(found) - limit]
            found, rounded = found[rounded >= least], rounded[rounded >= least]
        ranked = zip((-rounded).tolist(), (self._keys[number] for number in found.tolist()), strict=True)
        return [(key, -score) for score, key in nsmallest(limit, ranked)]


@dataclass(frozen=True, slots=True)
class Profile:
    """What the planner knows of a tool: its params, and how surely each word belongs to it."""

    tool: Tool
    params: tuple[Param, ...]
    verb: str
    """The stem of what it does, by its name or else the first word of its description; empty if neither is a verb."""
    nouns: tuple[str, ...]
    """The stems of its name that say what it works on."""
    vocabulary: Mapping[str, float]
    """How surely a stem belongs to it, from 0 to 1."""
    meanings: Mapping[int, float]
    """The same for clusters of synonyms."""
    naming: frozenset[str]
    """Stems that may stand before the values of its params."""
    forms: frozenset[str]
    """The words of its name, description and params, as they stand there."""
    acts: bool
    """Is its verb one that does more than show something?"""
    ways: frozenset[str]
    """The words of its name that another tool may have the contrary of: `on`, `off`."""

    def explains(self, stemmed: str) -> float:
        """How surely a word of a request speaks of this tool: 1 its own word, 0 not at all."""
        best = self.vocabulary.get(stemmed, 0.0)
        if best >= _SURE:
            return best
        return max([best, *(_SYNONYM * self.meanings.get(one, 0.0) for one in clusters(stemmed))])


class Library:
    """The tools that a tenant has, ready to search. Not for several threads at once."""

    def __init__(self) -> None:
        self._index = Index()
        self._profiles: dict[str, Profile] = {}
        self._verbs: Counter[str] = Counter()
        self._sorts: Counter[tuple[str, tuple[str, ...]]] = Counter()
        """The letters that examples of ids begin with, and what those are of."""
        self._spellings: dict[tuple[str, str, int], set[str]] = {}
        for word in sorted(COMMON):
            self._spellings.setdefault((word[0], word[-1], len(word)), set()).add(word)

    def __len__(self) -> int:
        return len(self._profiles)

    def put(self, tool: Tool, services: Iterable[str] = ()) -> None:
        """Add a tool, or replace it.

        :param services: the ids of its workers and their capabilities.
        """
        self.remove(tool.uid)
        profile = _profile(tool, frozenset(stem(word) for name in services for word in pieces(name)))
        self._profiles[tool.uid] = profile
        self._verbs.update(_verbs_in(profile))
        self._sorts.update(_sorts_in(profile))
        self._index.put(tool.uid, _document(profile))
        for word in filter(str.isalpha, profile.forms):
            self._spellings.setdefault((word[0], word[-1], len(word)), set()).add(word)

    def remove(self, uid: str) -> None:
        """Take a tool out, if it is there."""
        profile = self._profiles.pop(uid, None)
        if profile is not None:
            self._verbs.subtract(_verbs_in(profile))
            self._sorts -= Counter(_sorts_in(profile))
            self._index.remove(uid)
            if self._index.is_stale:
                self._index = Index()
                for other, left in self._profiles.items():
                    self._index.put(other, _document(left))

    def profile(self, uid: str) -> Profile | None:
        return self._profiles.get(uid)

    def search(self, stems: Iterable[str], kinds: Iterable[str], limit: int) -> list[tuple[Profile, float]]:
        """Return the tools that share most words with a request, best first.

        :param kinds: the kinds of the values in the request.
        """
        query: dict[str, float] = {f"={kind}": 1.0 for kind in kinds}
        for stemmed in stems:
            query[stemmed] = 1.0
            known = clusters(stemmed)
            for cluster in known:
                query[f"~{cluster}"] = max(query.get(f"~{cluster}", 0.0), _SYNONYM_WEIGHT / math.sqrt(len(known)))
        return [(self._profiles[uid], score) for uid, score in self._index.search(query, limit)]

    def shown(self, request: str, now: datetime, limit: int) -> list[Tool]:
        """Return the tools that a model may choose from: the nearest ten, what may give them their ids, then further ones."""
        reading = read(request, now, self.spelt)
        stems = {token.stem for token in reading.tokens}.union(*(self.sorts(str(one.value)) for one in reading.found))
        nearest = [found for found, _ in self.search(stems, {str(one.kind) for one in reading.found}, limit)]
        giving = [
            giver
            for found in nearest[:_ASKING]
            for param in found.params
            if param.required and param.role in LOOKED_UP
            for giver in self.givers(param, 3)
        ]
        ordered = [*nearest[:_NEAREST], *giving, *nearest[_NEAREST:]]
        return list({one.tool.uid: one.tool for one in ordered}.values())

    def relevance(self, text: str) -> dict[str, float]:
        """How well tools fit a request by their words: by uid, the share of the request's weight that they carry."""
        tokens = [token for token in read(text, _NOW).tokens if token.low not in SMALL]
        query = dict.fromkeys((token.stem for token in tokens), 1.0)
        whole = math.fsum(self._index.idf(term) for term in sorted(query) if self._index.has(term)) or 1.0
        return {uid: round(score / whole, 4) for uid, score in self._index.search(query, _LOOKED_AT)}

    def givers(self, param: Param, limit: int) -> list[Profile]:
        """Return the tools whose results may hold a value for a param, likeliest first."""
        query = {f">{param.role}": 1.0, f">{param.name}": 3.0, **{f">{word}": 1.0 for word in param.words}}
        for word in param.words if len(param.words) > 1 else ():
            query |= {word: 0.5, **{f"~{cluster}": 0.3 for cluster in clusters(word)}}
        return [self._profiles[uid] for uid, _ in self._index.search(query, limit)]

    def is_verb(self, stemmed: str) -> bool:
        """Is it a verb of general English, or what some tool does?"""
        return stemmed in VERBS or self.does(stemmed)

    def does(self, stemmed: str) -> bool:
        """Is it what some tool does, by its verb?"""
        return bool(stemmed) and self._verbs[stemmed] > 0

    def knows(self, stemmed: str) -> bool:
        """Is it a word of some tool, or of general English?"""
        return self.has(stemmed) or bool(clusters(stemmed)) or stemmed in VERBS

    def has(self, stemmed: str) -> bool:
        """Is it a word of some tool?"""
        return self._index.has(stemmed)

    def idf(self, stemmed: str) -> float:
        return self._index.idf(stemmed)

    def tells(self, stemmed: str) -> float:
        """How much a word tells of a tool: 0.35 where most tools have it, 1.6 where few have it."""
        return min(1.6, max(0.35, self._index.idf(stemmed) / 2.2))

    def sorts(self, value: str) -> frozenset[str]:
        """The words for what an id may be of by the letters that it begins with: those in examples, or short for a noun."""
        told = _PREFIXED.match(value)
        if told is None:
            return frozenset()
        prefix = told[1].lower()
        by_example = {noun for known, nouns in self._sorts if known == told[0] for noun in nouns}
        by_name = {noun for _, nouns in self._sorts for noun in nouns if _is_short(prefix, noun)}
        return frozenset(by_example or by_name)

    def spelt(self, word: str) -> str:
        """The word that a word is a misspelling of: one of the tools', or of general English; else the word itself.

        Of a phrasal verb that no tool has in its name, the verb that it stands for.
        """
        if word in PHRASES:
            first, *_, way = word.split()
            return word if self.does(f"{stem(first)} {way}") else PHRASES[word]
        if self.knows(stem(word)) or word in COMMON:
            return word
        if len(word) < _LEAST_REPAIRED:
            return next((one for one in ("the", "and", "for") if sorted(one) == sorted(word)), word)
        most = 1 if len(word) < _TWO_EDITS else 2
        plain = _DOUBLED.sub(r"\1", word)
        lengths = range(len(word) - 2, len(word) + most + 1)
        keys = [(word[0], end, length) for end in sorted({word[-1], word[-2]}) for length in lengths]
        found = []
        for other in (one for key in keys for one in self._spellings.get(key, ())):
            same = _DOUBLED.sub(r"\1", other) == plain
            distance = 0 if same else OSA.distance(word, other, score_cutoff=most)
            longer = len(other) > max(len(word), _LEAST_REPAIRED) or len(word) >= _LONG
            is_close = distance <= most and (same or longer or sorted(word) == sorted(other))
            if is_close and (other in COMMON or self.has(stem(other))):
                found.append((distance, other in COMMON, other))
        return min(found)[2] if found else word


def _verbs_in(profile: Profile) -> list[str]:
    return [profile.verb, *(f"{profile.verb} {way}" for way in profile.ways)]


def _sorts_in(profile: Profile) -> list[tuple[str, tuple[str, ...]]]:
    ids = [one for one in profile.params if one.role == "id" or one.prefixes]
    return [(prefix, sort_of(one, profile.nouns)) for one in ids for prefix in (*one.prefixes, "")]


def sort_of(param: Param, nouns: Sequence[str]) -> tuple[str, ...]:
    """What the ids are of that a param takes: the words of its name, or else the nouns of its tool."""
    return tuple(word for word in param.words if word not in UNNAMING) or tuple(nouns)


def _is_short(prefix: str, noun: str) -> bool:
    """Is it the noun, a synonym, or short for it: are its letters in the noun, in this order?"""
    rest = iter(noun)
    return noun.startswith(prefix[0]) and (near(prefix, noun) > 0 or all(letter in rest for letter in prefix))


def _profile(tool: Tool, services: frozenset[str]) -> Profile:
    params = params_of(tool)
    name = [stem(word) for word in pieces(tool.name)]
    told = prose(tool.description)
    said = [stem(word) for word in told if word not in SMALL]
    verb = _verb(name, said, told[1:5])
    nouns = tuple(dict.fromkeys(word for word in name if word not in _UNNAMED and word != verb))
    opening = prose(re.split(r"(?<=[.!?])\s|\n", tool.description, maxsplit=1)[0])
    first = min(sum(word not in SMALL for word in opening), _SENTENCE)
    groups = [(1.0, name), (0.9, services), (0.85, said[:first]), (0.6, said[first:_OPENING]), (0.35, said[_OPENING:])]
    for param in params:
        about = [stem(word) for word in prose(str(param.schema.get("description", ""))) if word not in SMALL]
        choices = [word for choice in param.choices for word in choice.split()]
        groups += [(0.5 if param.type == "boolean" else 0.75, param.words), (0.55, choices), (0.5, about)]
    found: dict[str, float] = {}
    meanings: dict[int, float] = {}
    for sure, listed in groups:
        for word in listed:
            found[word] = max(found.get(word, 0.0), sure)
            for cluster in clusters(word):
                meanings[cluster] = max(meanings.get(cluster, 0.0), sure)
    own = [part for one in params for part in pieces(" ".join(map(str, (one.name, *one.choices.values()))))]
    return Profile(
        tool=tool,
        params=params,
        verb=verb,
        nouns=nouns,
        vocabulary=found,
        meanings=meanings,
        naming=frozenset(word for param in params for word in (*param.words, *param.cues)),
        forms=frozenset((*pieces(tool.name), *told, *own)),
        ways=frozenset(pieces(tool.name)) & WAYS,
        acts=bool(verb) and not any(near(verb, shown) for shown in ACTS["showing"]),
    )


def _verb(name: list[str], said: list[str], opening: list[str]) -> str:
    """What a tool does: the first verb of its name, unless its description begins with another and has that as a noun."""
    defines = not (GROUPS["be"] | GROUPS["modal"]).isdisjoint(opening)
    commands = bool(name) and said[:1] == name[:1] and not defines
    named = name[0] if commands else next((word for word in name if word in VERBS), "")
    told = said[0] if said and said[0] in VERBS else ""
    is_noun = (told in name and name[0] not in ACTS["generic"]) or (named in said and told in ACTS["showing"])
    return told if told and (not named or is_noun) else named


def _document(profile: Profile) -> dict[str, float]:
    """The terms of a tool with their weighted frequencies: stems, clusters of synonyms and kinds of required values."""
    found: dict[str, float] = {}
    for word, sure in profile.vocabulary.items():
        found[word] = 3.0 if word in profile.nouns or word == profile.verb else 1.5 * sure * sure
        for cluster in clusters(word):
            found[f"~{cluster}"] = max(found.get(f"~{cluster}", 0.0), found[word])
    size = 1 - B + B * len(profile.vocabulary) / _TYPICAL
    found = {term: frequency / size for term, frequency in found.items()}
    found.update({f"={kind}": 1.0 for param in profile.params if param.required for kind in param.kinds})
    for name in profile.tool.outputs:
        for path in ((name,), *profile.tool.within(name)):
            found.update({f">{term}": 1.0 for term in (path[-1], *map(stem, pieces(path[-1])))})
    return found
