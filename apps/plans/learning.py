"""How a model of past plans is learned, and judged against the one before. Seconds of numbers, off every request's path."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from apps.plans.history import (
    FEATURES,
    SHIPPED_SURENESS,
    Arrays,
    History,
    Looked,
    Names,
    Past,
    Without,
    pairs,
    terms,
)

DEFAULT_WEIGHTS: Final = (-4.6, 3.2, 1.0, 2.2, 0.6, 2.4, 0.6, -0.3, 0.5, 1.0, 0.5, 2.0, 0.0)
"""What each of the features weighs where there is too little history to say otherwise."""

MOST: Final = 4_000
"""So many plans are learned from, the latest ones."""

HALF_LIFE_DAYS: Final = 90
"""After so long a plan counts half."""

_RIDGE: Final = 0.4
_FITTED_FROM: Final = 100
_JUDGED: Final = 700
_CHOSEN_FOR: Final = 300
"""For so many plans, the latest ones, it is held against them what would be chosen."""
_TRUST: Final = 1.0
"""How strongly fitted weights are pulled towards the shipped ones."""
_TRUST_OF_SURENESS: Final = 10.0
_ROUNDS: Final = 30
_MENTION: Final = 1.5

Look = Callable[[Past, History, Without], Looked]
"""What a model says of a request of which it is to know nothing."""


def learn(plans: Sequence[Past], names: Names, look: Look) -> History:
    """Learn from past plans, oldest first."""
    plans = plans[-MOST:]
    counted = [terms(plan.request) for plan in plans]
    vocabulary = _vocabulary(counted)
    numbers = {term: number for number, term in enumerate(vocabulary)}
    idf = _idf(counted, numbers)
    matrix = _matrix(counted, numbers, idf)
    uids = sorted({uid for plan in plans for uid in plan.tools})
    chosen = _chosen(plans, uids)
    words, naming = _naming(uids, names)
    inverse = _inverse(matrix @ matrix.T, [plan.weight for plan in plans])
    said = np.minimum(chosen @ naming, 1)
    follows, linked, together = pairs(plans)
    starts, requests, impacts = _postings(matrix)
    arrays = Arrays(
        vocabulary=tuple(vocabulary),
        idf=idf,
        starts=starts,
        requests=requests,
        impacts=impacts,
        uids=tuple(uids),
        dual=(inverse @ (chosen - chosen.mean(axis=0))).T.astype(np.float16),
        mean=chosen.mean(axis=0).astype(np.float32),
        words=words,
        words_dual=(inverse @ (said - said.mean(axis=0))).T.astype(np.float16),
        chosen_starts=np.concatenate([[0], np.cumsum(chosen.sum(axis=1))]).astype(np.int64),
        chosen=np.nonzero(chosen)[1].astype(np.int32),
        opens=dict(sorted(Counter(plan.tools[0] for plan in plans if plan.tools).items())),
        follows=follows,
        linked=linked,
        together=together,
        chains=_chains(plans),
        mention=_MENTION,
        weights=DEFAULT_WEIGHTS,
        sureness=SHIPPED_SURENESS,
    )
    history = History(arrays)
    judged = range(max(len(plans) - _JUDGED, 0), len(plans))
    looked = [look(plans[at], history, _without(inverse, at)) for at in judged]
    told = [plans[at] for at in judged]
    weights = _weights(told, looked) if len(plans) >= _FITTED_FROM else DEFAULT_WEIGHTS
    fitted = History(replace(arrays, weights=weights, mention=_mention(told, looked)))
    taken = [(plans[at].weight, look(plans[at], fitted, _without(inverse, at)).choice) for at in judged[-_CHOSEN_FOR:]]
    return History(replace(fitted.arrays, sureness=_sureness(taken)))


def _without(inverse: NDArray[np.float64], number: int) -> Without:
    return Without(number, inverse[:, number] / inverse[number, number])


def _mention(plans: Sequence[Past], looked: Sequence[Looked]) -> float:
    """How surely tools run in the order of mention: the log-odds over all neighbours that different clauses speak of."""
    told = Counter(
        one.homes[before] < one.homes[after]
        for plan, one in zip(plans, looked, strict=True)
        for before, after in pairwise(plan.tools)
        if one.homes and one.homes[before] != one.homes[after]
    )
    return round(max(0.0, math.log((told[True] + 3) / (told[False] + 1))), 4)


def _naming(uids: Sequence[str], names: Names) -> tuple[tuple[str, ...], NDArray[np.int8]]:
    """The words of the tools' names, and which tool has which."""
    words = tuple(sorted({word for uid in uids for word in names(uid)}))
    place = {word: number for number, word in enumerate(words)}
    found = np.zeros((len(uids), len(words)), dtype=np.int8)
    for row, uid in enumerate(uids):
        for word in names(uid):
            found[row, place[word]] = 1
    return words, found


def _vocabulary(counted: Sequence[Counter[str]]) -> list[str]:
    """Every word, and those pairs that came more than once."""
    having = Counter(term for one in counted for term in one)
    return sorted(term for term, times in having.items() if times > 1 or "+" not in term)


def _idf(counted: Sequence[Counter[str]], numbers: Mapping[str, int]) -> NDArray[np.float32]:
    having = np.zeros(len(numbers))
    for one in counted:
        for term in one.keys() & numbers.keys():
            having[numbers[term]] += 1
    pair = np.array([0.6 if "+" in term else 0.5 if term.startswith("=") else 1.0 for term in numbers])
    return (pair * np.log(1 + len(counted) / (having + 0.5))).astype(np.float32)


def _matrix(
    counted: Sequence[Counter[str]], numbers: Mapping[str, int], idf: NDArray[np.float32]
) -> NDArray[np.float32]:
    found = np.zeros((len(counted), len(numbers)), dtype=np.float32)
    for row, one in enumerate(counted):
        for term in sorted(one.keys() & numbers.keys()):
            times = one[term]
            found[row, numbers[term]] = idf[numbers[term]] * (1 + math.log(times))
    norms = np.sqrt((found * found).sum(axis=1, keepdims=True))
    return (found / np.where(norms == 0, 1, norms)).astype(np.float32)


def _postings(matrix: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]:
    term, request = np.nonzero(matrix.T)
    starts = np.searchsorted(term, np.arange(matrix.shape[1] + 1)).astype(np.int64)
    return starts, request.astype(np.int32), matrix[request, term]


def _chosen(plans: Sequence[Past], uids: Sequence[str]) -> NDArray[np.int8]:
    place = {uid: number for number, uid in enumerate(uids)}
    found = np.zeros((len(plans), len(uids)), dtype=np.int8)
    for row, plan in enumerate(plans):
        for uid in plan.tools:
            found[row, place[uid]] = 1
    return found


def _inverse(kernel: NDArray[np.float32], weights: Sequence[float]) -> NDArray[np.float64]:
    """The inverse of the kernel with its ridge; what counts less is trusted less."""
    noise = _RIDGE / np.maximum(np.array(weights), 0.05)
    return np.linalg.inv(kernel.astype(np.float64) + np.diag(noise)).astype(np.float64)


def _chains(plans: Sequence[Past]) -> float:
    """The share of plans of several tools whose links are exactly from each tool to the next."""
    longer = [plan for plan in plans if len(plan.tools) > 1]
    chained = [plan for plan in longer if plan.links == frozenset(zip(plan.tools, plan.tools[1:], strict=False))]
    return len(chained) / len(longer) if longer else 0.0


def _weights(plans: Sequence[Past], looked: Sequence[Looked]) -> tuple[float, ...]:
    """Fit what the features weigh, each plan judged by what the others say of it; near the defaults where that says little."""
    rows, right, held = [], [], []
    for plan, one in zip(plans, looked, strict=True):
        used = set(plan.tools)
        rows += [voice.features for voice in one.voices]
        right += [voice.uid in used for voice in one.voices]
        held += [plan.weight] * len(one.voices)
    if not rows:
        return DEFAULT_WEIGHTS
    told, came, counts = np.array(rows), np.array(right, dtype=np.float64), np.array(held)
    weights = _logistic(told, came, counts, np.array(DEFAULT_WEIGHTS), trust=_TRUST)
    return _as_sure_as_right(told, came, counts, weights)


def _as_sure_as_right(
    rows: NDArray[np.float64], right: NDArray[np.float64], held: NDArray[np.float64], weights: tuple[float, ...]
) -> tuple[float, ...]:
    """The same weights, stretched and shifted so that what is promised comes true as often.

    Where there is little to learn from, regularization keeps the features in proportion, and also keeps all of them small.
    This step therefore learns two more numbers without it.
    """
    told = np.stack([np.ones(len(rows)), rows @ np.array(weights)], axis=1)
    shift, stretch = _logistic(told, right, held, np.array([0.0, 1.0]), trust=_TRUST)
    return tuple(round(stretch * weight + (shift if place == 0 else 0.0), 6) for place, weight in enumerate(weights))


def _sureness(taken: Sequence[tuple[float, tuple[float, bool] | None]]) -> tuple[float, ...]:
    """Fit by what a choice's log-odds are to be shifted and stretched: tools that are chosen together are right or wrong together.

    :param taken: how each plan counts, and what would be chosen for it.
    """
    told = [(held, *choice) for held, choice in taken if choice is not None]
    if not told:
        return SHIPPED_SURENESS
    held, odds, right = (np.array(column, dtype=np.float64) for column in zip(*told, strict=True))
    rows = np.stack([np.ones(len(odds)), odds], axis=1)
    return _logistic(rows, right, held, np.array(SHIPPED_SURENESS), trust=_TRUST_OF_SURENESS)


def _logistic(
    rows: NDArray[np.float64],
    right: NDArray[np.float64],
    held: NDArray[np.float64],
    prior: NDArray[np.float64],
    *,
    trust: float,
) -> tuple[float, ...]:
    """Newton's method on the logistic loss with a pull towards the prior."""
    weights = prior.copy()
    for _ in range(_ROUNDS):
        p = 1 / (1 + np.exp(-np.clip(rows @ weights, -30, 30)))
        slope = rows.T @ (held * (p - right)) + trust * (weights - prior)
        curve = (rows * (held * p * (1 - p))[:, None]).T @ rows + trust * np.eye(len(prior))
        step = np.linalg.solve(curve, slope)
        weights = weights - step
        if float(np.abs(step).max()) < 1e-6:  # noqa: PLR2004  # converged
            break
    return tuple(round(float(weight), 6) for weight in weights)


assert len(DEFAULT_WEIGHTS) == len(FEATURES)  # noqa: S101  # one weight a feature
