"""What past plans teach: which tools requests of such words came to, what followed what. Learned once, then only read.

A request is a vector of its words. One linear model (ridge regression in its dual form) predicts the tools of a request.
Another predicts the words in the names of those tools, so that it also serves tools that no past plan used. The nearest
past requests vote, and the tools' own words count. A small logistic model weighs all this.
All is keyed by tool uid; nothing here knows a tenant, a clock or a database.
"""

from __future__ import annotations

import io
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from apps.core.lexical import stem, words
from apps.plans import lexicon, spans

Vector = NDArray[np.float32]

NEIGHBOURS: Final = 12
_WIDE: Final = 60
_PAIR: Final = 0.5
_SMOOTH: Final = 0.5
_SAYING: Final = 0.12
_WORDS: Final = 8
_LEAST: Final = 0.005
_MOST: Final = 0.9999
"""What no choice is surer than, and none less sure, before past plans correct it."""

FEATURES: Final = (
    "bias",
    "linear",
    "linear_share",
    "vote",
    "nearest",
    "content",
    "content_best",
    "seen",
    "company",
    "piece",
    "piece_share",
    "bridge",
    "unseen",
)
KEPT: Final = 0.5
"""A tool below this is not taken."""
NEAREST: Final = FEATURES.index("nearest")
SHIPPED_SURENESS: Final = (0.0, 1.0)
"""By what a choice's log-odds are shifted and stretched where there is too little history to say otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """One executed plan: what was asked, which tools were run in which order, whose result went to whom, how it counts."""

    request: str
    tools: tuple[str, ...]
    links: frozenset[tuple[str, str]] = frozenset()
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Voiced:
    """What history says for one tool: the features of :data:`FEATURES`, and the probability that they come to."""

    uid: str
    features: tuple[float, ...]
    p: float


def terms(text: str) -> Counter[str]:
    """The words of a request as history knows them: concepts, stems, pairs of neighbours. Values and names are masked."""
    return masked_terms(spans.masked(text))


def masked_terms(masked: str) -> Counter[str]:
    """As :func:`terms`, of a text whose values are masked."""
    said = [word for word in words(spans.without_names(masked)) if word not in lexicon.STOP and len(word) > 1]
    found: Counter[str] = Counter()
    concepts = [lexicon.concept(word) for word in said]
    for word, concept in zip(said, concepts, strict=True):
        found[concept] += 1
        if (root := stem(word)) != concept:
            found[f"={root}"] += 1
    for pair in pairwise(concepts):
        found["+".join(pair)] += 1
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrays:
    """The numbers of a model, as they are stored. Requests are numbered as learned, tools as in `uids`."""

    vocabulary: tuple[str, ...]
    idf: Vector
    starts: NDArray[np.int64]
    requests: NDArray[np.int32]
    impacts: Vector
    uids: tuple[str, ...]
    dual: NDArray[np.float16]
    mean: Vector
    words: tuple[str, ...]
    words_dual: NDArray[np.float16]
    chosen_starts: NDArray[np.int64]
    chosen: NDArray[np.int32]
    opens: Mapping[str, float]
    follows: Mapping[str, Mapping[str, float]]
    linked: Mapping[str, Mapping[str, float]]
    together: Mapping[str, Mapping[str, float]]
    chains: float
    mention: float
    weights: tuple[float, ...]
    sureness: tuple[float, ...]

    def dumps(self) -> bytes:
        """Return the model as bytes."""
        told = {
            name: getattr(self, name)
            for name in (
                "vocabulary",
                "uids",
                "words",
                "opens",
                "follows",
                "linked",
                "together",
                "chains",
                "mention",
                "weights",
                "sureness",
            )
        }
        out = io.BytesIO()
        np.savez_compressed(
            out,
            told=np.frombuffer(json.dumps(told, sort_keys=True).encode(), dtype=np.uint8),
            idf=self.idf,
            starts=self.starts,
            requests=self.requests,
            impacts=self.impacts,
            dual=self.dual,
            mean=self.mean,
            words_dual=self.words_dual,
            chosen_starts=self.chosen_starts,
            chosen=self.chosen,
        )
        return out.getvalue()

    @classmethod
    def loads(cls, stored: bytes) -> Arrays:
        """Read what :meth:`dumps` wrote."""
        with np.load(io.BytesIO(stored), allow_pickle=False) as found:
            told: dict[str, Any] = json.loads(found["told"].tobytes())
            arrays = {name: found[name] for name in found.files if name != "told"}
        for name in ("vocabulary", "uids", "words", "weights", "sureness"):
            told[name] = tuple(told[name])
        if len(told["sureness"]) != len(SHIPPED_SURENESS):  # it was written by another version
            told["sureness"] = SHIPPED_SURENESS
        return cls(**told, **arrays)


Names = Callable[[str], frozenset[str]]
"""The concepts of a tool's name, by uid; empty where there is no such tool now."""


@dataclass(frozen=True, slots=True)
class Without:
    """A past request that is to count as unknown, so that it can be judged by the others."""

    request: int
    column: NDArray[np.float64]
    """Its column of the inverse kernel, divided by its own element."""


@dataclass(frozen=True, slots=True)
class Looked:
    """What is said of a past request of which nothing is known, and the number of the clause where each tool is spoken of."""

    voices: Sequence[Voiced]
    homes: Mapping[str, int]
    choice: tuple[float, bool] | None
    """The log-odds of what would be chosen for it, and whether that is just what its plan had. None: some of that is offered no
    more, or it asks for nothing.
    """


@dataclass(frozen=True, slots=True)
class Heard:
    """A request and its pieces, held against all past ones: a row of likenesses each, the whole first."""

    alike: Vector
    nearest: tuple[int, ...]
    without: Without | None

    def scores(self, dual: Vector) -> Vector:
        """What a linear model says: a row for the whole and each piece, a column for each row of the model."""
        found: Vector = self.alike @ dual.T
        if self.without is not None:
            found -= np.outer(self.alike @ self.without.column, dual[:, self.without.request])
        return found


@dataclass(frozen=True, slots=True)
class Wording:
    """For each piece of a request (a row), how surely the name of a tool for it has each word (a column)."""

    words: tuple[str, ...]
    chances: Vector

    def sayings(self) -> list[list[str]]:
        """For each piece the words worth looking for tools by, the surest first."""
        found = []
        for row in self.chances.round(5).tolist():
            strong = sorted((-chance, word) for word, chance in zip(self.words, row, strict=True) if chance >= _SAYING)
            found.append([word for _, word in strong[:_WORDS]])
        return found

    def bridges(self, names: Sequence[frozenset[str]]) -> NDArray[np.float64]:
        """How surely some piece asks for what each name says: half the mean over the name's words, half the weakest."""
        if not len(self.chances) or not names:
            return np.zeros(len(names))
        places = {word: place for place, word in enumerate(self.words)}
        strange, spare = len(places), len(places) + 1
        longest = max((len(name) for name in names), default=0) or 1
        told = np.full((len(names), longest), spare)
        for row, name in enumerate(names):
            told[row, : len(name)] = [places.get(word, strange) for word in name]
        # In one order, since that decides the last digits of sums.
        told.sort(axis=1)
        sizes = np.array([len(name) or 1 for name in names])
        nothing, all_sure = np.zeros((len(self.chances), 2)), np.ones((len(self.chances), 1))
        summed = np.concatenate([self.chances, nothing], axis=1)[:, told].sum(axis=2) / sizes
        least = np.concatenate([self.chances, nothing[:, :1], all_sure], axis=1)[:, told].min(axis=2)
        found: NDArray[np.float64] = (0.5 * summed + 0.5 * least).max(axis=0)
        return np.where([bool(name) for name in names], found, 0.0)


class History:
    """A learned model, ready to be asked."""

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays
        self._numbers = {term: number for number, term in enumerate(arrays.vocabulary)}
        self._places = {uid: place for place, uid in enumerate(arrays.uids)}
        self._word_places = {word: place for place, word in enumerate(arrays.words)}
        # Row by row, as they are looked up.
        self._dual = np.ascontiguousarray(arrays.dual, dtype=np.float32)
        self._words_dual = np.ascontiguousarray(arrays.words_dual, dtype=np.float32)
        self._times = np.bincount(arrays.chosen, minlength=len(arrays.uids))
        self.size = len(arrays.chosen_starts) - 1

    @property
    def arrays(self) -> Arrays:
        """What it has learned, to be stored."""
        return self._arrays

    def knows(self, uid: str, heard: Heard) -> bool:
        """Has a past plan used this tool, other than one that is left out?"""
        return self.times(uid) - (uid in self._own(heard)) > 0

    def times(self, uid: str) -> int:
        """How many past plans used a tool."""
        place = self._places.get(uid)
        return 0 if place is None else int(self._times[place])

    def hear(self, text: str, pieces: Sequence[str], without: Without | None = None) -> Heard:
        """Hold a request and its pieces, their values masked, against all past ones."""
        alike = np.stack([self._likenesses(masked_terms(one)) for one in (text, *pieces)])
        whole = alike[0].copy()
        if without is not None:
            whole[without.request] = 0
        nearest = tuple(_top(whole, _WIDE).tolist())
        return Heard(alike, nearest, without)

    def _likenesses(self, counted: Counter[str]) -> Vector:
        found = np.zeros(self.size, dtype=np.float32)
        for term, weight in self._weighed(counted):
            part = slice(int(self._arrays.starts[term]), int(self._arrays.starts[term + 1]))
            found[self._arrays.requests[part]] += weight * self._arrays.impacts[part]
        return found

    def _weighed(self, counted: Counter[str]) -> list[tuple[int, np.float32]]:
        known = sorted((self._numbers[term], times) for term, times in counted.items() if term in self._numbers)
        raw = [(number, float(self._arrays.idf[number]) * (1 + math.log(times))) for number, times in known]
        norm = math.sqrt(math.fsum(weight * weight for _, weight in raw)) or 1.0
        return [(number, np.float32(weight / norm)) for number, weight in raw]

    def words(self, heard: Heard, names: Names) -> Wording:
        """For each piece, which words the names of its tools should have, and how surely."""
        about = sorted({word for uid in self._near_uids(heard) for word in names(uid)} & self._word_places.keys())
        if not about:
            return Wording((), np.zeros((len(heard.alike) - 1, 0), dtype=np.float32))
        scores = heard.scores(self._words_dual[[self._word_places[word] for word in about]])[1:]
        return Wording(tuple(about), np.clip(scores, 0.0, 1.0).astype(np.float32))

    def _near_uids(self, heard: Heard) -> set[str]:
        return {self._arrays.uids[place] for request in heard.nearest for place in self._chosen(request)}

    def voices(self, heard: Heard, content: Mapping[str, float], words: Wording, names: Names) -> list[Voiced]:
        """What history says for each tool that it or the words bring up, by uid.

        :param content: how well the tools' own words fit, by uid, for those that are to be looked at.
        :param words: what :meth:`words` answered.
        """
        votes, closest = self._votes(heard)
        uids = sorted({*votes, *closest, *content})
        linear, piece = self._linear(heard, uids)
        own = self._own(heard)
        company = self._company(dict(zip(uids, linear.tolist(), strict=True)), own)
        times = np.array([self.times(uid) - (uid in own) for uid in uids], dtype=np.float64)
        fits = np.array([content.get(uid, 0.0) for uid in uids])
        best, best_piece, top = (max(float(one.max(initial=0.0)), 1e-9) for one in (linear, piece, fits))
        rows = np.stack(
            [
                np.ones(len(uids)),
                linear,
                linear / best,
                [votes.get(uid, 0.0) for uid in uids],
                [closest.get(uid, 0.0) for uid in uids],
                fits,
                fits >= top,
                np.log1p(times) / 5,
                [company.get(uid, 0.0) for uid in uids],
                piece,
                piece / best_piece,
                words.bridges([names(uid) for uid in uids]),
                times <= 0,
            ],
            axis=1,
        ).round(5)
        chances = self._weighed_together(rows)
        return [Voiced(uid, tuple(row), p) for uid, row, p in zip(uids, rows.tolist(), chances.tolist(), strict=True)]

    def _weighed_together(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        z = np.clip((rows * np.array(self._arrays.weights)).sum(axis=1), -30.0, 30.0)
        found: NDArray[np.float64] = (1 / (1 + np.exp(-z))).round(4)
        return found

    def _own(self, heard: Heard) -> frozenset[str]:
        if heard.without is None:
            return frozenset()
        return frozenset(self._arrays.uids[place] for place in self._chosen(heard.without.request))

    def _linear(self, heard: Heard, uids: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What the linear model says of these tools: by the whole request, and by the piece that speaks most for each."""
        whole, most = np.zeros(len(uids)), np.zeros(len(uids))
        known = [number for number, uid in enumerate(uids) if uid in self._places]
        if known:
            places = [self._places[uids[number]] for number in known]
            scores = heard.scores(self._dual[places])
            whole[known] = scores[0] + self._arrays.mean[places]
            most[known] = scores[1:].max(axis=0) if len(scores) > 1 else scores[0]
        return whole.round(5), most.round(5)

    def affinities(self, heard: Heard, uids: Sequence[str]) -> list[dict[str, float]]:
        """For each piece, how much the linear model ties it to each of these tools."""
        known = [uid for uid in uids if uid in self._places]
        scores = heard.scores(self._dual[[self._places[uid] for uid in known]])[1:]
        return [dict(zip(known, row.tolist(), strict=True)) for row in scores]

    def sureness(self, odds: float) -> float:
        """The probability that exactly the tools of a request were kept, by the log-odds that :func:`log_odds` tells."""
        shift, stretch = self._arrays.sureness
        return round(1 / (1 + math.exp(-max(min(shift + stretch * odds, 30.0), -30.0))), 4)

    def _votes(self, heard: Heard) -> tuple[dict[str, float], dict[str, float]]:
        """For each tool of the nearest past requests, its share of their vote, and how alike the closest is that used it."""
        votes: defaultdict[str, float] = defaultdict(float)
        closest: dict[str, float] = {}
        whole = 0.0
        for rank, request in enumerate(heard.nearest):
            likeness = float(heard.alike[0, request])
            vote = likeness**2 if rank < NEIGHBOURS else 0.0
            whole += vote
            for place in self._chosen(request):
                uid = self._arrays.uids[place]
                closest.setdefault(uid, likeness)
                votes[uid] += vote
        return {uid: vote / (whole or 1.0) for uid, vote in votes.items()}, closest

    def _chosen(self, request: int) -> list[int]:
        starts = self._arrays.chosen_starts
        found: list[int] = self._arrays.chosen[int(starts[request]) : int(starts[request + 1])].tolist()
        return found

    def _company(self, scores: Mapping[str, float], own: frozenset[str]) -> dict[str, float]:
        """How much the other likely tools suggest each: the strongest link to one of them, times how likely that one is.

        :param own: the tools of a plan that is not to count.
        """
        strong = sorted((uid for uid in scores if scores[uid] > _PAIR * 0.5), key=lambda uid: (-scores[uid], uid))[:8]
        found: dict[str, float] = {}
        for other in strong:
            times = max(self.times(other) - (other in own), 1)
            for uid, count in self._arrays.together.get(other, {}).items():
                if uid != other:
                    others = count - (uid in own and other in own)
                    likely = min(scores[other], 1.0) * max(others, 0.0) / times
                    found[uid] = max(found.get(uid, 0.0), likely)
        return found

    # Order.

    @property
    def runs_in_chains(self) -> bool:
        """Did past plans mostly hand on from each tool to the next?"""
        return self._arrays.chains >= _PAIR

    @property
    def mention_holds(self) -> float:
        """The log-odds that tools run in the order in which a request speaks of them."""
        return self._arrays.mention

    def follows(self, before: str, after: str) -> float:
        """The log-odds that of two tools of a plan the second comes right after the first, against what is usual: a half."""
        there = self._arrays.follows.get(before, {}).get(after, 0.0)
        both = self._arrays.together.get(before, {}).get(after, 0.0)
        return math.log((there + _SMOOTH) / (max(both - there, 0.0) + _SMOOTH))

    def opens(self, uid: str) -> float:
        """The log-odds that a plan with this tool begins with it."""
        times = float(self.times(uid))
        first = min(self._arrays.opens.get(uid, 0.0), times)
        return math.log((first + _SMOOTH) / (times - first + 2 * _SMOOTH))

    def links(self, source: str, target: str) -> float | None:
        """The share of the plans with both tools in which the first handed on to the second; None: never seen together."""
        both = self._arrays.together.get(source, {}).get(target, 0.0)
        if not both:
            return None
        return self._arrays.linked.get(source, {}).get(target, 0.0) / both


def log_odds(kept: Iterable[float], passed: Iterable[float]) -> float:
    """The log-odds that of several tools all that were kept are right and no other is, as if one said nothing of another."""
    right = [*kept]
    together = (
        math.exp(math.fsum(math.log(max(p, _LEAST)) for p in (*right, *(1 - p for p in passed)))) if right else 0.0
    )
    likely = min(max(together, _LEAST), _MOST)
    return math.log(likely / (1 - likely))


def _top(scores: Vector, limit: int) -> NDArray[np.int64]:
    """The numbers of the best scores above 0, best first, ties by number."""
    found = np.flatnonzero(scores > 0)
    if len(found) > limit:
        least = np.partition(scores[found], len(found) - limit)[len(found) - limit]
        found = found[scores[found] >= least]
    return found[np.lexsort((found, -scores[found]))][:limit]


def pairs(
    plans: Iterable[Past],
) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]], dict[str, dict[str, float]]]:
    """How often each tool came right after another, took its result, and stood in one plan with it."""
    follows: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    linked: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    together: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for plan in plans:
        for before, after in pairwise(plan.tools):
            follows[before][after] += plan.weight
        for source, target in sorted(plan.links):
            linked[source][target] += plan.weight
        used = sorted(set(plan.tools))
        for one in used:
            for other in used:
                if one != other:
                    together[one][other] += plan.weight
    return _plain(follows), _plain(linked), _plain(together)


def _plain(counted: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    return {
        one: {other: round(count, 4) for other, count in sorted(found.items())}
        for one, found in sorted(counted.items())
    }
