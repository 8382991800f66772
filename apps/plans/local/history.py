"""What past plans teach: which tools requests of such words came to, and in which order. Learned at once, then only read.

A request is a vector of its words, its values left out. Ridge regression and the nearest past requests say which tools it
comes to; a logistic model weighs that against how well the tools' own words fit. Tools are named by uid; nothing here knows
a tenant, a clock or a database.
"""

from __future__ import annotations

import io
import itertools
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from apps.plans.local.values import read
from apps.plans.local.words import SMALL
from apps.plans.proposals import Likely

Vector = NDArray[np.float64]
Content = Callable[[str], Mapping[str, float]]
"""How well the tools' own words fit a request: by uid, from 0 to 1."""

MOST: Final = 4_000
"""So many plans are learned from, the latest."""
KEPT: Final = 0.45
"""A tool that is less likely is not proposed."""
_COVERED: Final = 0.5
"""Where fewer plans use only tools that others use too, past plans say nothing: most requests need tools new to them."""
_PRIOR: Final = (-4.6, 3.2, 1.0, 2.2, 0.6, 2.4, 0.6, -0.3, 0.0)
"""What the features weigh where there is too little to learn from: constant, regression, its share of the best, vote of the
nearest, the nearest, words, best by words, how often used, never used.
"""
_SHIPPED_SURENESS: Final = (0.0, 1.0)
_RIDGE: Final = 0.4
_NEIGHBOURS: Final = 12
_WIDE: Final = 60
_FITTED_FROM: Final = 60
FITTED_ON: Final = 500
"""So many of them, the latest, say what the features weigh."""
_LOOKED_AT: Final = 0.02
_PERMUTED: Final = 6
_MENTION: Final = 0.5
_LONGEST_ODDS: Final = 7.0
_NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """One plan as it was carried out: what was asked, which tools ran in which order, whose result went to whom, its weight."""

    request: str
    tools: tuple[str, ...]
    links: frozenset[tuple[str, str]] = frozenset()
    weight: float = 1.0


def terms(text: str) -> Counter[str]:
    """The stems of a request and their pairs, without its values and small words."""
    reading = read(text, _NOW)
    valued = {place for one in reading.found for place in range(one.first, one.last + 1)}
    said = [
        token.stem
        for token in reading.tokens
        if token.place not in valued and token.low not in SMALL and len(token.low) > 1
    ]
    return Counter([*said, *map("+".join, pairwise(said))])


class History:
    """A learned model. `uids` are the tools of the plans, `requests` their number."""

    def __init__(self, told: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        self._told, self._arrays = told, arrays
        self.uids: Sequence[str] = told["uids"]
        self.requests = len(arrays["chosen"])
        self._place = {uid: place for place, uid in enumerate(self.uids)}
        self._terms = {term: number for number, term in enumerate(told["vocabulary"])}
        self._chosen: Vector = arrays["chosen"].astype(np.float64)
        self._dual: Vector = arrays["dual"].astype(np.float64)
        self._mean, self._times = self._chosen.mean(axis=0), self._chosen.sum(axis=0)
        self._weights = np.array(told["weights"])

    def dumps(self) -> bytes:
        """The model as bytes."""
        out = io.BytesIO()
        body = np.frombuffer(json.dumps(self._told, sort_keys=True).encode(), dtype=np.uint8)
        np.savez_compressed(out, allow_pickle=False, told=body, **self._arrays)
        return out.getvalue()

    @classmethod
    def loads(cls, stored: bytes) -> History:
        """Read what :meth:`dumps` wrote."""
        with np.load(io.BytesIO(stored), allow_pickle=False) as found:
            told = json.loads(found["told"].tobytes())
            return cls(told, {name: found[name] for name in found.files if name != "told"})

    def likely(self, text: str, content: Mapping[str, float]) -> Likely:
        """The tools that a request comes to; none where most plans use tools that no other plan does.

        :param content: how well the tools' own words fit, for those that are to be looked at.
        """
        if self._told["covered"] < _COVERED:
            return Likely()
        uids, rows = self.features(terms(text), content)
        chances = _chances(rows, self._weights)
        shift, stretch = self._told["sureness"]
        told = [(uid, round(float(p), 4)) for uid, p in zip(uids, chances, strict=True)]
        told.sort(key=lambda one: (-one[1], one[0]))
        odds = shift + stretch * log_odds(p for _, p in told)
        kept = tuple((uid, p) for uid, p in told if p >= KEPT)
        return Likely(kept, round(1 / (1 + math.exp(-odds)), 4) if kept else 0.0)

    def features(
        self, counted: Counter[str], content: Mapping[str, float], *, without: int | None = None
    ) -> tuple[list[str], Vector]:
        """The features of all tools that past plans or words bring up, a row each.

        :param without: the number of a past request that is to count as unknown, so that it can be judged by the others.
        """
        alike, own = self._alike(counted), np.zeros(len(self.uids))
        if without is None:
            linear = alike @ self._dual + self._mean
        else:
            own = self._chosen[without]
            linear = own - self._dual[without] / self._arrays["own"][without]
            alike[without] = 0
        nearest = np.argsort(-alike, kind="stable")[:_WIDE]
        votes = np.maximum(alike[nearest[:_NEIGHBOURS]], 0) ** 2
        vote = votes @ self._chosen[nearest[:_NEIGHBOURS]] / (votes.sum() or 1.0)
        near, times = (self._chosen[nearest] * alike[nearest, None]).max(axis=0), self._times - own
        best, top = max(float(linear.max(initial=0.0)), 1e-9), max(content.values(), default=0.0)
        known = np.flatnonzero((vote > 0) | (linear > _LOOKED_AT)).tolist()
        uids = sorted({*(self.uids[place] for place in known), *content})
        rows = np.zeros((len(uids), len(_PRIOR)))
        for row, uid in zip(rows, uids, strict=True):
            fit = content.get(uid, 0.0)
            row[0], row[5], row[6], row[8] = 1.0, fit, fit > 0 and fit >= top - 1e-9, 1.0
            if (place := self._place.get(uid)) is not None:
                row[1:5] = linear[place], linear[place] / best, vote[place], near[place]
                row[7:9] = math.log1p(times[place]) / 5, times[place] <= 0
        return uids, rows.round(5)

    def _alike(self, counted: Counter[str]) -> Vector:
        """How alike the request is to each past one: the cosine of their vectors."""
        idf, starts = self._arrays["idf"], self._arrays["starts"]
        known = sorted((self._terms[term], times) for term, times in counted.items() if term in self._terms)
        weights = [(number, float(idf[number]) * (1 + math.log(times))) for number, times in known]
        norm = math.sqrt(math.fsum(weight * weight for _, weight in weights)) or 1.0
        found = np.zeros(self.requests)
        for number, weight in weights:
            part = slice(int(starts[number]), int(starts[number + 1]))
            found[self._arrays["holders"][part]] += weight / norm * self._arrays["impacts"][part]
        return found

    def links(self, source: str, target: str) -> float | None:
        """The share of the plans with both tools in which the first handed on to the second; None: never seen together."""
        places = self._place.get(source), self._place.get(target)
        both = 0.0 if None in places else float((self._chosen[:, places[0]] * self._chosen[:, places[1]]).sum())
        return self._told["linked"].get(f"{source} {target}", 0.0) / both if both else None

    def ordered(self, mentioned: Mapping[str, int]) -> list[str]:
        """Tools in the order that past plans ran them in.

        :param mentioned: the tools, each with the place in the request where it is spoken of.
        """
        follows = self._told["follows"]

        def gain(one: str, other: str) -> float:
            there, back = follows.get(f"{one} {other}", 0.0), follows.get(f"{other} {one}", 0.0)
            ahead = mentioned[other] - mentioned[one]
            return math.log((there + 0.3) / (back + 0.3)) + (math.copysign(_MENTION, ahead) if ahead else 0.0)

        first = sorted(mentioned, key=lambda uid: (mentioned[uid], uid))
        ways = itertools.permutations(first) if len(first) <= _PERMUTED else [tuple(first)]
        return list(max(ways, key=lambda way: round(sum(itertools.starmap(gain, pairwise(way))), 9)))


def log_odds(chances: Iterable[float]) -> float:
    """The log-odds that of these tools those that are kept are right and no other is, as if one said nothing of another."""
    told = math.fsum(math.log(max(p if p >= KEPT else 1 - p, 1e-4)) for p in chances)
    likely = min(math.exp(told), 1 - 1e-4)
    return max(math.log(likely / (1 - likely)), -_LONGEST_ODDS)


def learn(plans: Sequence[Past], content: Content) -> History:
    """Learn from past plans, oldest first. Seconds of numbers for thousands of plans."""
    plans = plans[-MOST:]
    counted = [terms(plan.request) for plan in plans]
    having = Counter(term for one in counted for term in one)
    vocabulary = sorted(term for term, times in having.items() if times > 1 or "+" not in term)
    numbers = {term: number for number, term in enumerate(vocabulary)}
    idf = np.array(
        [(0.6 if "+" in term else 1.0) * math.log(1 + len(plans) / (having[term] + 0.5)) for term in vocabulary]
    )
    matrix = np.zeros((len(plans), len(vocabulary)), dtype=np.float32)
    for row, one in zip(matrix, counted, strict=True):
        for term in one.keys() & numbers.keys():
            row[numbers[term]] = idf[numbers[term]] * (1 + math.log(one[term]))
    matrix /= np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-9)
    used = Counter(uid for plan in plans for uid in set(plan.tools))
    uids = sorted(used)
    place = {uid: number for number, uid in enumerate(uids)}
    chosen = np.zeros((len(plans), len(uids)), dtype=np.int8)
    for number, plan in enumerate(plans):
        chosen[number, [place[uid] for uid in plan.tools]] = 1
    noise = np.diag([_RIDGE / max(plan.weight, 0.05) for plan in plans])
    inverse = np.linalg.inv((matrix @ matrix.T).astype(np.float64) + noise)
    columns, holders = np.nonzero(matrix.T)
    told: dict[str, Any] = {
        "vocabulary": vocabulary,
        "uids": uids,
        "follows": _counted((f"{one} {other}", plan.weight) for plan in plans for one, other in pairwise(plan.tools)),
        "linked": _counted((f"{one} {other}", plan.weight) for plan in plans for one, other in sorted(plan.links)),
        "covered": sum(all(used[uid] > 1 for uid in plan.tools) for plan in plans) / len(plans),
        "weights": _PRIOR,
        "sureness": _SHIPPED_SURENESS,
    }
    arrays = {
        "idf": idf.astype(np.float32),
        "starts": np.searchsorted(columns, np.arange(len(vocabulary) + 1)).astype(np.int64),
        "holders": holders.astype(np.int32),
        "impacts": matrix[holders, columns],
        "chosen": chosen,
        "dual": (inverse @ (chosen - chosen.mean(axis=0))).astype(np.float32),
        "own": np.diag(inverse).astype(np.float64),
    }
    found = History(told, arrays)
    return found if len(plans) < _FITTED_FROM else History(told | _fitted(found, plans, counted, content), arrays)


def _counted(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    found = defaultdict[str, float](float)
    for pair, weight in pairs:
        found[pair] += weight
    return {pair: round(count, 4) for pair, count in sorted(found.items())}


def _fitted(found: History, plans: Sequence[Past], counted: Sequence[Counter[str]], content: Content) -> dict[str, Any]:
    """What the features weigh, and how sure a set of tools is: each of the latest plans judged by what the others say of it."""
    rows, right = [], []
    latest = range(max(len(plans) - FITTED_ON, 0), len(plans))
    for number in latest:
        uids, told = found.features(counted[number], content(plans[number].request), without=number)
        rows.append(told)
        right.append(np.array([uid in plans[number].tools for uid in uids], dtype=np.float64))
    held = np.concatenate([np.full(len(told), plans[number].weight) for number, told in zip(latest, rows, strict=True)])
    learned = _logistic(np.concatenate(rows), np.concatenate(right), held, np.array(_PRIOR), trust=1.0)
    chances = [_chances(told, learned) for told in rows]
    odds = np.array([[1.0, log_odds(one)] for one in chances])
    came = np.array(
        [((one >= KEPT) == (hit > 0)).all() for one, hit in zip(chances, right, strict=True)], dtype=np.float64
    )
    sureness = _logistic(odds, came, np.ones(len(odds)), np.array(_SHIPPED_SURENESS), trust=10.0)
    return {"weights": learned.round(6).tolist(), "sureness": sureness.round(6).tolist()}


def _chances(rows: Vector, weights: Vector) -> Vector:
    found: Vector = 1 / (1 + np.exp(-np.clip((rows * weights).sum(axis=1), -30.0, 30.0)))
    return found


def _logistic(rows: Vector, right: Vector, held: Vector, prior: Vector, *, trust: float) -> Vector:
    """Newton's method on the logistic loss, with a pull towards the prior."""
    weights = prior.astype(np.float64)
    for _ in range(30):
        p = _chances(rows, weights)
        slope = rows.T @ (held * (p - right)) + trust * (weights - prior)
        curve = (rows * (held * p * (1 - p))[:, None]).T @ rows + trust * np.eye(len(prior))
        step = np.linalg.solve(curve, slope)
        weights -= step
        if float(np.abs(step).max()) < 1e-6:  # noqa: PLR2004  # converged
            break
    return weights
