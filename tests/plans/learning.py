"""Learns the weights of the local planner anew from sets of requests: `python -m tests.plans.learning [FILE ...]`.

The sets are those in `sets/learned/` and in further files of that form. The weights of features come
from a softmax over each request's candidate plans. Those of the judge come from a logistic regression on the plans that are
best by weights learned without their set. Both are drawn to what `words.txt` held before. It prints how good the planner is
on each set with what three quarters of the others teach, and writes what all of them teach.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import django
import numpy as np
from numpy.typing import NDArray

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.settings")
django.setup()

from apps.plans.local import words  # noqa: E402  # Django comes first
from apps.plans.local.proposing import Draft, Proposing  # noqa: E402
from apps.plans.proposals import Asked  # noqa: E402
from benchmarks.suites import planning  # noqa: E402

_SETS: Final = Path(__file__).parent / "sets/learned"
_FILE: Final = Path(words.__file__).with_name("words.txt")
_RIDGE, _STEPS, _FOLDS, _MOST, _WIDTH = 0.5, 300, 4, 50, 150
Vector = NDArray[np.float64]
Plans = list[tuple[Mapping[str, float], bool]]
"""What is told of each of several plans, and whether it is right."""
Set = tuple[planning.Shelf, Sequence[Mapping[str, Any]]]


def read_sets(files: Sequence[str]) -> dict[str, Set]:
    """The tools and requests of each set by name."""
    paths = [*sorted(_SETS.glob("*.jsonl")), *map(Path, files)]
    read = {path.stem: planning.read_set(path) for path in paths}
    return {name: (planning.Shelf(tools), requests) for name, (tools, requests) in read.items()}


def _work(shelf: planning.Shelf, request: Mapping[str, Any]) -> Proposing:
    asked = Asked(intent=request["text"], now=planning._NOW)  # when the sets are asked
    return Proposing(asked, shelf.library, shelf.catalogue, None)


def _near(draft: Draft) -> Iterator[Draft]:
    """The plan, and those with another tool or other values for one part."""
    yield draft
    for place, chosen in enumerate(draft.chosen):
        for other in (*chosen.others, *chosen.rivals) if chosen.match else ():
            yield Draft([*draft.chosen[:place], replace(chosen, match=other), *draft.chosen[place + 1 :]])


def candidates(shelf: planning.Shelf, request: Mapping[str, Any]) -> Plans:
    """The plans that the planner weighs against each other for a request; none where none or all are right."""
    work, found = _work(shelf, request), dict[str, tuple[Mapping[str, float], bool]]()
    for draft in (near for one in work.drafts()[:12] for near in _near(one)):
        plan = work.concluded(draft)
        key = str([(one.tool_uid, one.params) for one in plan.steps]) + str(sorted(draft.told.items()))
        if key not in found and len(found) < _MOST:
            found[key] = draft.told, planning.judge(request, plan, shelf.catalogue)
    return list(found.values()) if len({right for _, right in found.values()}) > 1 else []


def judged(shelf: planning.Shelf, requests: Sequence[Mapping[str, Any]]) -> Plans:
    """What tells of the best plan of each request, and whether it is right."""
    works = [(request, work) for request in requests if (work := _work(shelf, request)).stop]
    best = [(request, work, work.drafts()[0]) for request, work in works]
    return [
        (work.measured(one), planning.judge(request, work.concluded(one), shelf.catalogue))
        for request, work, one in best
    ]


def ranked(requests: Sequence[Plans], before: Mapping[str, float]) -> dict[str, float]:
    """The weights by which right plans come before wrong ones."""
    names = sorted({name for plans in requests for told, _ in plans for name in told} | before.keys())
    rows = np.array([[told.get(name, 0.0) for name in names] for plans in requests for told, _ in plans], dtype=float)
    right = np.array([is_right for plans in requests for _, is_right in plans])
    sizes = [len(plans) for plans in requests]
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])

    def slope(weights: Vector) -> Vector:
        scores = np.clip(rows @ weights, -60, 60)
        powers = np.exp(scores - np.repeat(np.maximum.reduceat(scores, starts), sizes))
        shares, wanted = (
            one / np.repeat(np.maximum(np.add.reduceat(one, starts), 1e-300), sizes) for one in (powers, powers * right)
        )
        found: Vector = rows.T @ (shares - wanted)
        return found

    return _fitted(names, slope, before)


def sure(rows: Plans, before: Mapping[str, float]) -> dict[str, float]:
    """The weights by which a plan is as likely right as it says."""
    names = sorted({name for told, _ in rows for name in told})
    features = np.array([[told[name] for name in names] for told, _ in rows], dtype=float)
    right = np.array([float(is_right) for _, is_right in rows])
    return _fitted(names, lambda w: features.T @ (1 / (1 + np.exp(-np.clip(features @ w, -30, 30))) - right), before)


def _fitted(names: list[str], slope: Callable[[Vector], Vector], before: Mapping[str, float]) -> dict[str, float]:
    """What goes down the slope, with a pull to what was before, by Adam."""
    prior = np.array([before.get(name, 0.0) for name in names])
    weights, mean, square = prior.copy(), np.zeros_like(prior), np.zeros_like(prior)
    for step in range(1, _STEPS + 1):
        found = slope(weights) + _RIDGE * (weights - prior)
        mean, square = 0.9 * mean + 0.1 * found, 0.99 * square + 0.01 * found * found
        pace = 0.1 if step < _STEPS * 0.6 else 0.02
        weights -= pace * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.99**step)) + 1e-8)
    told = zip(names, weights.round(2).tolist(), strict=True)
    return {name: weight for name, weight in told if weight or name in before}


def _use(**learned: Mapping[str, float]) -> None:
    for name, weights in learned.items():
        words.WEIGHTS[name].clear()
        words.WEIGHTS[name].update(weights)


def main(files: Sequence[str]) -> None:
    sets = read_sets(files)
    score, right = dict(words.WEIGHTS["score"]), dict(words.WEIGHTS["right"])
    plans = {
        name: [found for one in asked if (found := candidates(shelf, one))] for name, (shelf, asked) in sets.items()
    }
    fold = {name: number % _FOLDS for number, name in enumerate(sets)}
    apart = [
        ranked([one for name, found in plans.items() if fold[name] != number for one in found], score)
        for number in range(_FOLDS)
    ]
    rows, totals = dict[str, Plans](), dict[str, list[float]]()
    for name, one in sets.items():
        _use(score=apart[fold[name]])
        rows[name] = judged(*one)
    for name, (shelf, requests) in sets.items():
        others = [row for other, found in rows.items() if fold[other] != fold[name] for row in found]
        _use(score=apart[fold[name]], right=sure(others, right))
        for row in planning.everyday(name, shelf, requests):
            totals.setdefault(row.case.partition(": ")[2], []).append(row.ours)
    print(f"{'each set by what others teach':33}", *(f"{name[:7]:>7}" for name in sets))
    for case, figures in totals.items():
        print(f"{case:33}", *(f"{one:7.2f}" for one in figures), f"  mean {np.mean(figures):.3f}")
    _use(
        score=ranked([one for found in plans.values() for one in found], score),
        right=sure([row for found in rows.values() for row in found], right),
    )
    text = _FILE.read_text(encoding="utf-8").partition("\n[score]")[0]
    for name, weights in words.WEIGHTS.items():
        entries = " ".join(f"{head}: {weight:g};" for head, weight in sorted(weights.items()))
        text += f"\n[{name}]\n" + re.sub(rf"(.{{1,{_WIDTH}}};)(?: |$)", r"\1\n", entries)
    _FILE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
