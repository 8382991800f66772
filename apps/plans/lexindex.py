"""An inverted index of words that grows and shrinks document by document: a flat base, a small delta, and what is gone.

The answer of a search depends on the documents alone, never on their order or on when the delta was merged. Lengths are
weighed against typical ones and counts are exact. Terms are summed from the rarest on, and ties go by key. So every process
that has read the same rows gives the same answer.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from apps.core.lexical import K1, B

Ids = NDArray[np.int32]
Floats = NDArray[np.float32]
Marks = NDArray[np.uint8]
Mask = NDArray[np.bool_]

_COMMON: Final = 4_000
_ENOUGH: Final = 300
_LONG: Final = 200
"""From so many documents on it pays to ask whether a term's postings have to be gone through."""
_SPARSE: Final = 64
_MANY: Final = 1_000
_SLACK: Final = 0.001
"""Far more than rounding takes from a score or gives to it."""
_DELTA: Final = 1_000
_DELTA_SHARE: Final = 8
_PLACES: Final = 5


@dataclass(frozen=True, slots=True)
class Field:
    """How much a field weighs, how many words it typically has, and the bit that marks its words."""

    weight: float
    typical: int
    mark: int


@dataclass(frozen=True, slots=True)
class Matches:
    """The best documents, best first: their numbers, their scores, and for each (term, document) the fields that share it."""

    terms: tuple[str, ...]
    docs: Ids
    scores: Floats
    marks: Marks


@dataclass(frozen=True, slots=True)
class Base:
    """Postings end to end: those of term number n are between starts[n] and starts[n + 1], documents ascending.

    Documents below `upto` are here, the others in the delta.
    """

    numbers: Mapping[str, int]
    starts: NDArray[np.int64]
    docs: Ids
    impacts: Floats
    marks: Marks
    upto: int = 0

    def slice(self, term: str) -> tuple[Ids, Floats, Marks] | None:
        """The postings of a term, or None if there are none."""
        number = self.numbers.get(term)
        if number is None:
            return None
        found = slice(int(self.starts[number]), int(self.starts[number + 1]))
        if found.start == found.stop:
            return None
        return self.docs[found], self.impacts[found], self.marks[found]


@dataclass(frozen=True, slots=True)
class Frozen:
    """An index at one moment."""

    base: Base
    delta: Mapping[str, tuple[Ids, Floats, Marks]]
    live: Mask
    upto: int


class _Weighed(NamedTuple):
    """A term of a query: how many documents have it, and how much it tells."""

    having: int
    term: str
    weight: np.float32


@dataclass(slots=True)
class _Postings:
    """The delta's postings of one term."""

    docs: array[int] = field(default_factory=lambda: array("i"))
    impacts: array[float] = field(default_factory=lambda: array("f"))
    marks: array[int] = field(default_factory=lambda: array("B"))

    def arrays(self) -> tuple[Ids, Floats, Marks]:
        return (
            np.array(self.docs, dtype=np.int32),
            np.array(self.impacts, dtype=np.float32),
            np.array(self.marks, dtype=np.uint8),
        )


_EMPTY: Final = Base({}, np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, np.uint8))


class LexIndex:
    """Documents by key. Not for several threads at once, while :func:`merged` may run beside everything."""

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self._fields = fields
        self._base = _EMPTY
        self._delta: dict[str, _Postings] = {}
        self._counts: Counter[str] = Counter()
        self._numbers: dict[str, int] = {}
        self._keys: list[str] = []
        self._terms: dict[int, tuple[str, ...]] = {}
        self.live: Mask = np.zeros(1024, dtype=np.bool_)
        self._scratch: Floats = np.zeros(1024, dtype=np.float32)

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def size(self) -> int:
        """How long an array must be that has a place for every document."""
        return len(self.live)

    def key(self, doc: int) -> str:
        return self._keys[doc]

    def number(self, key: str) -> int | None:
        """The number of a document, or None if it is not there."""
        return self._numbers.get(key)

    def put(self, key: str, document: Mapping[str, Sequence[str]]) -> int:
        """Add a document, or replace the one of this key."""
        self.drop(key)
        doc = len(self._keys)
        self._keys.append(key)
        self._numbers[key] = doc
        if doc >= len(self.live):
            self.live = np.concatenate([self.live, np.zeros_like(self.live)])
            self._scratch = np.zeros(len(self.live), dtype=np.float32)
        self.live[doc] = True
        weighed = self._weighed(document)
        self._terms[doc] = tuple(weighed)
        for term, (frequency, mark) in weighed.items():
            self._counts[term] += 1
            postings = self._delta.get(term)
            if postings is None:
                postings = self._delta[term] = _Postings()
            postings.docs.append(doc)
            postings.impacts.append(frequency / (K1 + frequency))
            postings.marks.append(mark)
        return doc

    def drop(self, key: str) -> None:
        """Take a document out, if it is there. Its postings stay until the next merge."""
        doc = self._numbers.pop(key, None)
        if doc is None:
            return
        self.live[doc] = False
        for term in self._terms.pop(doc):
            self._counts[term] -= 1
            if not self._counts[term]:
                del self._counts[term]

    def idf(self, term: str) -> float:
        """How much a term tells; one that no document has tells the most."""
        having = self._counts.get(term, 0)
        return math.log(1 + (len(self._numbers) - having + 0.5) / (having + 0.5))

    def count(self, term: str) -> int:
        """How many documents have a term."""
        return self._counts.get(term, 0)

    def search(self, terms: Iterable[str], *, limit: int, allowed: Mask | None = None) -> Matches:
        """The best documents among those allowed, ties by key.

        :param allowed: of length :attr:`size`; None: all.
        """
        query = tuple(sorted(set(terms)))
        gate = self.live if allowed is None else self.live & allowed
        docs, scores = self._scored(query, gate, limit)
        best, found = self._best(docs, np.round(scores, _PLACES), limit)
        return Matches(query, best, found, self.marks(query, best))

    def needs_merge(self) -> bool:
        """Has the delta grown so long, or have so many gone, that searches pay for it?"""
        fresh = len(self._keys) - self._base.upto
        return fresh > max(_DELTA, len(self._numbers) // _DELTA_SHARE)

    def frozen(self) -> Frozen:
        """What a merge is made of. Quick; what changes afterwards does not touch it."""
        delta = {term: postings.arrays() for term, postings in self._delta.items()}
        return Frozen(self._base, delta, self.live.copy(), len(self._keys))

    def adopt(self, base: Base) -> None:
        """Take a merged base in the place of the one before; what came meanwhile stays in the delta."""
        fresh: dict[str, _Postings] = {}
        for term, postings in self._delta.items():
            at = next((place for place, doc in enumerate(postings.docs) if doc >= base.upto), None)
            if at is not None:
                fresh[term] = _Postings(postings.docs[at:], postings.impacts[at:], postings.marks[at:])
        self._base, self._delta = base, fresh

    def merge(self) -> None:
        """Merge here and now."""
        self.adopt(merged(self.frozen()))

    def facts(self) -> dict[str, Any]:
        """What it holds, for who measures."""
        arrays = (self._base.starts, self._base.docs, self._base.impacts, self._base.marks)
        return {"documents": len(self), "terms": len(self._counts), "base_bytes": sum(one.nbytes for one in arrays)}

    def _weighed(self, document: Mapping[str, Sequence[str]]) -> dict[str, tuple[float, int]]:
        found: dict[str, tuple[float, int]] = {}
        for name, about in self._fields.items():
            terms = document.get(name, ())
            norm = 1 - B + B * len(terms) / about.typical
            for term, times in Counter(terms).items():
                frequency, mark = found.get(term, (0.0, 0))
                found[term] = (frequency + about.weight * times / norm, mark | about.mark)
        return found

    def _scored(self, query: tuple[str, ...], gate: Mask, limit: int) -> tuple[Ids, Floats]:
        """The documents that may be among the best, with their scores, summed from the rarest term on."""
        known = sorted((self._counts[term], term) for term in query if term in self._counts)
        weighed = [_Weighed(having, term, np.float32(self.idf(term))) for having, term in known]
        docs, scores, left = self._found(weighed, gate, limit)
        if left:
            near = scores >= _least(scores, limit) - _most(left)
            docs, scores = docs[near], scores[near]
        for one in left:
            for having, impacts, _ in self._postings(one.term):
                places, hit = _places(having, docs)
                scores += one.weight * impacts.take(places, mode="clip") * hit
        return docs, scores

    def _found(self, weighed: Sequence[_Weighed], gate: Mask, limit: int) -> tuple[Ids, Floats, Sequence[_Weighed]]:
        """What the rare terms bring, and the terms that are left: they only refine it.

        Those are left that nearly all have, where enough is found, and those that could bring nothing that is among the best.
        """
        scores, found, weight = self._scratch, 0, 0.0
        touched: list[Ids] = []
        brought: tuple[Ids, Floats] | None = None
        for place, one in enumerate(weighed):
            left = weighed[place:]
            if one.having > _COMMON and found >= _ENOUGH:
                break
            if one.having > _LONG and found > limit and weight > _most(left):
                brought = self._touched(touched, gate)
                if _least(brought[1], limit) > _most(left):
                    break
            for docs, impacts, _ in self._postings(one.term):
                scores[docs] += one.weight * impacts
                found += int(np.count_nonzero(gate[docs]))
                touched.append(docs)
            weight += float(one.weight)
            brought = None
        else:
            left = ()
        brought = brought or self._touched(touched, gate)
        for docs in touched:
            scores[docs] = 0
        return *brought, left

    def _touched(self, postings: Sequence[Ids], gate: Mask) -> tuple[Ids, Floats]:
        """Each document of some postings that has a score and passes the gate, once."""
        if sum(map(len, postings)) > len(gate) // _SPARSE:
            some = np.flatnonzero((self._scratch > 0) & gate).astype(np.int32)
            return some, self._scratch[some]
        docs: Ids = np.sort(np.concatenate(postings)) if postings else self._base.docs[:0]
        scores = self._scratch[docs]
        kept = (scores > 0) & gate[docs]
        kept[1:] &= docs[1:] != docs[:-1]
        return docs[kept], scores[kept]

    def _postings(self, term: str) -> Iterable[tuple[Ids, Floats, Marks]]:
        settled = self._base.slice(term)
        if settled is not None:
            yield settled
        fresh = self._delta.get(term)
        if fresh is not None:
            yield fresh.arrays()

    def _best(self, docs: Ids, scores: Floats, limit: int) -> tuple[Ids, Floats]:
        near = scores >= _least(scores, limit)
        docs, scores = docs[near], scores[near]
        ranked = sorted(zip(scores.tolist(), docs.tolist(), strict=True), key=lambda one: (-one[0], self._keys[one[1]]))
        ranked = ranked[:limit]
        best = np.array([doc for _, doc in ranked], dtype=np.int32)
        return best, np.array([score for score, _ in ranked], dtype=np.float32)

    def marks(self, query: Sequence[str], docs: Ids) -> Marks:
        """For each (term, document) the marks of the fields that share it; 0 where none does."""
        found = np.zeros((len(query), len(docs)), dtype=np.uint8)
        if not len(docs):
            return found
        for row, term in enumerate(query):
            for having, _, marks in self._postings(term):
                places, hit = _places(having, docs)
                found[row] |= marks.take(places, mode="clip") * hit
        return found


def _places(having: Ids, docs: Ids) -> tuple[NDArray[np.int64], Mask]:
    """Where some documents are in a term's postings, and which of them are there at all."""
    places = having.searchsorted(docs)
    return places, having.take(places, mode="clip") == docs


def _least(scores: Floats, limit: int) -> float:
    """The score that is the last of the best; 0 if there are no more than those."""
    if len(scores) <= limit:
        return 0.0
    if len(scores) > _MANY:
        scores = scores[scores >= _least(scores[::8], limit)]  # of a part of them it is never higher
    return float(np.partition(scores, len(scores) - limit)[len(scores) - limit])


def _most(left: Sequence[_Weighed]) -> float:
    """More than what some terms can add to any score, for an impact is always below 1."""
    return math.fsum(one.weight for one in left) + _SLACK


def merged(frozen: Frozen) -> Base:
    """The documents of one moment as a base of their own, without those that are gone."""
    base, delta = frozen.base, frozen.delta
    numbers = dict(base.numbers)
    for term in delta:
        numbers.setdefault(term, len(numbers))
    owners = [np.repeat(np.arange(len(base.starts) - 1), np.diff(base.starts))]
    owners += [np.full(len(postings[0]), numbers[term]) for term, postings in delta.items()]
    parts = [(base.docs, base.impacts, base.marks), *delta.values()]
    owner = np.concatenate(owners)
    docs = np.concatenate([part[0] for part in parts])
    kept = frozen.live[docs]
    owner, docs = owner[kept], docs[kept]
    order = np.lexsort((docs, owner))
    return Base(
        numbers,
        np.searchsorted(owner[order], np.arange(len(numbers) + 1)).astype(np.int64),
        docs[order],
        np.concatenate([part[1] for part in parts])[kept][order],
        np.concatenate([part[2] for part in parts])[kept][order],
        frozen.upto,
    )
