"""Learns the weights of the local planner anew from sets of requests: `python -m tests.plans.learning [FOLDER ...]`.

The sets are those in `sets/` and in further folders with a `tools.jsonl` and a `requests.jsonl`. The weights of features come
from a softmax over each request's candidate plans; those of the judges from a logistic regression on the plans of each set that
weights learned without it prefer. Both are drawn to what `weights.txt` held before. It prints how good the planner is on
each set with what the others teach, and writes what all of them teach.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import django
import numpy as np
from numpy.typing import NDArray

django.setup()

from apps.plans.local import words  # noqa: E402
from apps.plans.local.proposing import Chosen, Draft, Proposing  # noqa: E402
from apps.plans.proposals import Asked  # noqa: E402
from benchmarks.suites import planning  # noqa: E402

_SETS: Final = Path(__file__).parent / "sets"
_FILE: Final = Path(words.__file__).with_name("weights.txt")
_RIDGE, _JUDGES_RIDGE, _STEPS, _FOLDS = 0.5, 1.0, 300, 4
_MOST: Final = 50
_WIDTH: Final = 150
Request = Mapping[str, Any]
Told = Mapping[str, float]
Vector = NDArray[np.float64]
Plans = list[tuple[Told, bool]]
"""The candidate plans of one request: what is told of each, and whether it is right."""


def read_sets(folders: Sequence[str]) -> dict[str, tuple[planning.Shelf, list[Request]]]:
    """The tools and requests of each set by name."""
    paths = [
        (one.stem.partition("-")[2], one.with_name(one.name.replace("requests", "tools")), one)
        for one in sorted(_SETS.glob("requests-*.jsonl"))
    ]
    paths += [(Path(one).name, Path(one) / "tools.jsonl", Path(one) / "requests.jsonl") for one in folders]
    read = {name: [_lines(tools), _lines(requests)] for name, tools, requests in paths}
    return {name: (planning.Shelf(tools), requests) for name, (tools, requests) in read.items()}


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _work(shelf: planning.Shelf, request: Request) -> Proposing:
    return Proposing(Asked(intent=request["text"], now=planning._NOW), shelf.library, shelf.catalogue, None)


def _near(draft: Draft) -> Iterator[Draft]:
    """The plan, and those with another tool or other values for one part."""
    yield draft
    for place, chosen in enumerate(draft.chosen):
        for other in (*chosen.others, *chosen.rivals) if chosen.match else ():
            changed: list[Chosen] = [*draft.chosen]
            changed[place] = replace(chosen, match=other)
            yield Draft(changed)


def candidates(shelf: planning.Shelf, request: Request) -> Plans:
    """The plans that the planner weighs against each other for a request; none where none or all are right."""
    work = _work(shelf, request)
    found: dict[str, tuple[Told, bool]] = {}
    for draft in (near for one in work.drafts()[:12] for near in _near(one)):
        plan = work.concluded(draft)
        key = json.dumps([[one.tool_uid, one.params] for one in plan.steps], sort_keys=True, default=str)
        key += str(sorted(draft.told.items()))
        if key not in found and len(found) < _MOST:
            found[key] = draft.told, planning.judge(request, plan, shelf.catalogue)
    return list(found.values()) if len({right for _, right in found.values()}) > 1 else []


def fit_ranker(requests: Sequence[Plans], prior: Told) -> dict[str, float]:
    """The weights by which right plans come before wrong ones: Adam on the softmax, with a pull towards the prior."""
    names = sorted({name for plans in requests for told, _ in plans for name in told} | prior.keys())
    place = {name: number for number, name in enumerate(names)}
    rows = np.zeros((sum(map(len, requests)), len(names)))
    right, starts = np.zeros(len(rows), dtype=bool), np.zeros(len(requests), dtype=np.int64)
    row = 0
    for number, plans in enumerate(requests):
        starts[number] = row
        for told, is_right in plans:
            for name, value in told.items():
                rows[row, place[name]] = value
            right[row], row = is_right, row + 1
    sizes = np.diff([*starts, len(rows)])
    before = np.array([prior.get(name, 0.0) for name in names])

    def slope(weights: Vector) -> Vector:
        scores = np.clip(rows @ weights, -60, 60)
        powers = np.exp(scores - np.repeat(np.maximum.reduceat(scores, starts), sizes))
        good = powers * right
        shares = powers / np.repeat(np.add.reduceat(powers, starts), sizes)
        wanted = good / np.repeat(np.maximum(np.add.reduceat(good, starts), 1e-300), sizes)
        found: Vector = rows.T @ (shares - wanted) + _RIDGE * (weights - before)
        return found

    weights = _adam(slope, before)
    return {name: round(float(weight), 2) for name, weight in zip(names, weights, strict=True) if abs(weight) >= 0.005}


def fit_judge(rows: Sequence[tuple[Told, bool]], prior: Told) -> dict[str, float]:
    """The weights of a logistic regression, with a pull towards the prior."""
    names = sorted({*prior} | {name for told, _ in rows for name in told})
    features = np.array([[float(told.get(name, 0.0)) for name in names] for told, _ in rows])
    right = np.array([float(is_right) for _, is_right in rows])
    before = np.array([prior.get(name, 0.0) for name in names])

    def slope(weights: Vector) -> Vector:
        p = 1 / (1 + np.exp(-np.clip(features @ weights, -30, 30)))
        found: Vector = features.T @ (p - right) + _JUDGES_RIDGE * (weights - before)
        return found

    return {name: round(float(one), 3) for name, one in zip(names, _adam(slope, before), strict=True)}


def _adam(slope: Any, start: Vector) -> Vector:
    weights, mean, square = start.copy(), np.zeros_like(start), np.zeros_like(start)
    for step in range(1, _STEPS + 1):
        found = slope(weights)
        mean, square = 0.9 * mean + 0.1 * found, 0.99 * square + 0.01 * found * found
        pace = 0.1 if step < _STEPS * 0.6 else 0.02
        weights -= pace * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.99**step)) + 1e-8)
    return weights


def _use(name: str, weights: Told) -> None:
    words.WEIGHTS[name].clear()
    words.WEIGHTS[name].update(weights)


def judged(shelf: planning.Shelf, requests: Sequence[Request]) -> Plans:
    """What tells of the best plan of each request, and whether it is right."""
    found = []
    for request in requests:
        work = _work(shelf, request)
        drafts = work.drafts() if work.stop else []
        for draft in drafts[:1]:
            right = planning.judge(request, work.concluded(draft), shelf.catalogue)
            found.append((work.measured(draft), right))
    return found


def main(folders: Sequence[str]) -> None:
    sets = read_sets(folders)
    before = {name: dict(weights) for name, weights in words.WEIGHTS.items()}
    plans = {
        name: [found for one in requests if (found := candidates(shelf, one))] for name, (shelf, requests) in sets.items()
    }
    fold = {name: number % _FOLDS for number, name in enumerate(sets)}
    apart = [
        fit_ranker([one for name, found in plans.items() if fold[name] != number for one in found], before["score"])
        for number in range(_FOLDS)
    ]
    rows: dict[str, Plans] = {}
    for name, (shelf, requests) in sets.items():
        _use("score", apart[fold[name]])
        rows[name] = judged(shelf, requests)
    totals: dict[str, list[float]] = {}
    for name, (shelf, requests) in sets.items():
        _use("score", apart[fold[name]])
        others = [row for other, found in rows.items() if fold[other] != fold[name] for row in found]
        _use("right", fit_judge(others, before["right"]))
        for row in planning.everyday(name, shelf, requests):
            totals.setdefault(row.case.partition(": ")[2], []).append(row.ours)
    print(f"{'each set by what others teach':33}", *(f"{name[:7]:>7}" for name in sets))
    for case, figures in totals.items():
        print(f"{case:33}", *(f"{one:7.2f}" for one in figures), f"  mean {np.mean(figures):.3f}")
    _use("score", fit_ranker([one for found in plans.values() for one in found], before["score"]))
    _use("right", fit_judge([row for found in rows.values() for row in found], before["right"]))
    text = "# What was learned from sets of requests by tests/plans/learning.py.\n"
    for name, weights in words.WEIGHTS.items():
        entries = " ".join(f"{head}: {weight:g};" for head, weight in sorted(weights.items()))
        text += f"\n[{name}]\n" + re.sub(rf"(.{{1,{_WIDTH}}};)(?: |$)", r"\1\n", entries)
    _FILE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
