"""How sure a match is: a logistic model over margins, unexplained words and the evidence of each value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from apps.plans.local.matching import Match, is_own
from apps.plans.local.parts import Part, bits
from apps.plans.local.words import GROUPS
from apps.plans.proposals import Evidence

WEIGHTS: Final = {
    "bias": -3.06,
    "unexplained": -1.64,
    "weak": -1.08,
    "missing": 0.00,
    "margin": 0.50,
    "other": 0.18,
    "verb": -0.04,
    "named": 0.62,
    "cut": 0.40,
    "loose": -1.30,
    "alike": -1.96,
    "score": 0.26,
    "gentle": 0.91,
    "unsaid": 0.15,
    "misfit": -1.07,
    "swallowed": -2.83,
    "question": 0.17,
    "verbless": 0.79,
    "unasked": -0.05,
    "share": 0.22,
    "clean": 1.02,
    "deprived": -0.35,
}
"""Fitted on plans over tools that the product does not ship."""
READY: Final = 0.8
CONFIRM: Final = 0.58
READING: Final = 0.33
"""From here on a tool that only reads is shown, if no other act is asked for."""
_CLAUSE: Final = GROUPS["pronoun"] | GROUPS["article"]
_HOLDING: Final = GROUPS["negation"] | GROUPS["condition"] | GROUPS["exception"] | GROUPS["repeat"]
_CUED: Final = 0.8
_MARGIN: Final = 0.6
_MARGIN_OF_CHANGES: Final = 1.0
_BY_KIND: Final = 0.7
_UNSAID: Final = 0.5
_MISFIT: Final = 0.3
_AGREES: Final = 0.6
_MOST_MARGIN: Final = 3.0
_MOST_SCORE: Final = 12.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """How likely a match is what was meant, and whether it may run at once."""

    p: float
    sure: bool
    """Nothing speaks against running it without a question."""
    features: dict[str, float]


def judged(match: Match, rivals: Sequence[Match], *, gentle: bool) -> Verdict:
    """Judge a match beside the next best tools for the same part."""
    features = measured(match, rivals, gentle=gentle)
    total = WEIGHTS["bias"] + math.fsum(WEIGHTS[name] * value for name, value in features.items())
    p = 1 / (1 + math.exp(-total))
    margin = _MARGIN if gentle else _MARGIN_OF_CHANGES
    sure = (
        p >= READY
        and not features["unexplained"]
        and not features["weak"]
        and not features["missing"]
        and not features["alike"]
        and features["misfit"] < _MISFIT
        and not (match.plural and not gentle)
        and features["margin"] >= margin
        and features["other"] >= _MARGIN / 2
        and (features["verb"] >= _AGREES or (gentle and not match.part.verb))
        and (_is_named(match) or (match.profile.specific and match.verb >= _AGREES))
    )
    return Verdict(p, sure, features)


def _is_named(match: Match) -> bool:
    """Does the part say what the tool works on, all of it if only the kind of a value says so?"""
    return match.named >= _AGREES and (match.named > _BY_KIND or match.unsaid < _UNSAID)


def measured(match: Match, rivals: Sequence[Match], *, gentle: bool) -> dict[str, float]:
    """The features of a match."""
    near = [match.score - one.score for one in rivals if not one.missing or match.missing]
    cut = [one for one in match.options.values() if one.evidence == Evidence.CUT]
    kinds = [
        str(one.kind)
        for name, one in match.options.items()
        if one.kind is not None and one.cued < _CUED and not one.side and _is_required(match, name)
    ]
    return {
        "unexplained": float(match.unexplained.bit_count()),
        "weak": float(match.weak.bit_count()),
        "missing": float(len(match.missing)),
        "margin": min([_MOST_MARGIN, *near]),
        "other": min(_MOST_MARGIN, match.rival),
        "verb": match.verb,
        "named": match.named,
        "cut": float(len(cut)),
        "loose": math.fsum(max(0.0, 1 - one.cued) for one in cut),
        "alike": float(len(kinds) - len(set(kinds))),
        "score": max(-_MOST_SCORE, min(_MOST_SCORE, match.score)),
        "gentle": float(gentle),
        "unsaid": match.unsaid,
        "misfit": math.fsum(1 - one.fit for one in match.options.values()),
        "swallowed": float(match.swallowed),
        "question": float(match.part.question and match.profile.acts),
        "verbless": float(not match.part.verb and not match.part.question),
        "unasked": float(match.profile.acts and not match.part.verb and not match.part.question),
        "share": max(-_MOST_SCORE, min(_MOST_SCORE, match.score)) / max(1, match.part.content.bit_count()),
        "clean": float(not match.unexplained and not match.weak and not cut),
        "deprived": float(bool(match.part.verb) and match.verb < _AGREES),
    }


def _is_required(match: Match, name: str) -> bool:
    return any(one.required for one in match.profile.params if one.name == name)


def holding(part: Part, match: Match) -> tuple[str, ...]:
    """The words of a part that negate, condition, except or repeat it, where no sure value holds them."""
    kept = 0
    for option in match.options.values():
        kept |= option.mask
    tokens = part.reading.tokens
    starts = {one.first for one in part.found}
    return tuple(
        tokens[place].text
        for place in bits(((1 << part.stop) - 1) & ~((1 << part.first) - 1) & ~kept)
        if any(
            said in _HOLDING
            for said in accumulate((one.low for one in part.tokens[place - part.first :][:3]), "{} {}".format)
        )
        and not (place + 1 in starts and tokens[place].low in ("until", "till", "but"))
        and not (part.question and tokens[place].low in GROUPS["question"])
        and not is_own(match.profile, tokens[place].low)
        and not (tokens[place].low == "provided" and part.low(place + 1) not in _CLAUSE)
    )
