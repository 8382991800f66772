"""How sure a match is: a logistic model over margins, unexplained words and the evidence of each value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from apps.plans.local.matching import Match, is_own
from apps.plans.local.options import Option
from apps.plans.local.parts import Part, bits
from apps.plans.local.words import GROUPS, SMALL
from apps.plans.proposals import Evidence

WEIGHTS: Final = {
    "bias": -3.49,
    "unexplained": -1.28,
    "weak": -0.14,
    "missing": 0.48,
    "margin": 0.31,
    "other": 0.37,
    "verb": -0.08,
    "named": 0.92,
    "cut": -0.17,
    "loose": -1.07,
    "alike": -0.72,
    "score": 0.02,
    "gentle": 0.71,
    "unsaid": 0.06,
    "misfit": -1.72,
    "swallowed": -0.11,
    "question": -0.53,
    "verbless": 0.45,
    "unasked": -0.49,
    "share": 0.31,
    "clean": 0.53,
    "typed": 0.66,
    "proper": 0.99,
    "bare": -0.70,
    "vague": -0.34,
    "long": 0.10,
    "words": -0.25,
    "both": 0.64,
    "acts": 0.71,
    "deprived": -0.51,
}
"""Fitted on plans over tools that the product does not ship."""
READY: Final = 0.85
CONFIRM: Final = 0.52
READING: Final = 0.33
"""From here on a tool that only reads is shown, if no other act is asked for."""
ASK: Final = 0.25
"""From here on what a tool lacks is asked for."""
_CLAUSE: Final = GROUPS["pronoun"] | GROUPS["article"]
_HOLDING: Final = GROUPS["negation"] | GROUPS["condition"] | GROUPS["exception"] | GROUPS["repeat"]
_FORMED: Final = frozenset({Evidence.TYPED, Evidence.QUOTED, Evidence.CHOICE, Evidence.CONTEXT})
_VAGUE: Final = (
    GROUPS["back"] | GROUPS["bulk"] | {"one", "ones", "my", "mine", "new", "stuff", "thing", "things", "everything"}
)
_MANY: Final = 6
_UNASKED: Final = 0.9
"""From here on a tool that changes something is sure though no verb asks for it."""
_ANNOUNCED: Final = 0.4
_CUED: Final = 0.8
_MARGIN: Final = 0.6
_MARGIN_OF_CHANGES: Final = 1.0
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
    plain = gentle and features["clean"] and features["both"] == 1
    sure = (
        p >= (CONFIRM if plain else READY)
        and not features["unexplained"]
        and not features["missing"]
        and not features["alike"]
        and (gentle or not match.plural)
        and (gentle or match.verb >= _AGREES or p >= _UNASKED)
        and features["margin"] >= margin
        and features["other"] >= _MARGIN / 2
    )
    return Verdict(p, sure, features)


def measured(match: Match, rivals: Sequence[Match], *, gentle: bool) -> dict[str, float]:
    """The features of a match."""
    part, used = match.part, 0
    for one in match.options.values():
        used |= one.mask
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
        "typed": float(sum(one.evidence in _FORMED for one in match.options.values())),
        "proper": float(sum(one.text[:1].isupper() for one in cut)),
        "bare": float(not match.options),
        "vague": float(sum(part.low(place) in _VAGUE and not used >> place & 1 for place in part.stems)),
        "long": float(max(0, part.content.bit_count() - _MANY)),
        "words": float(sum(max(0, one.last - one.first - 1) for one in cut)),
        "both": match.verb * match.named,
        "acts": float(match.profile.acts),
        "deprived": float(bool(match.part.verb) and match.verb < _AGREES),
    }


def _is_required(match: Match, name: str) -> bool:
    return any(one.required for one in match.profile.params if one.name == name)


def is_plain_name(option: Option, part: Part, *, gentle: bool) -> bool:
    """Do capitals tell where a value cut from plain words begins and ends, and some word what it is for?"""
    words = option.text.split()
    return (
        option.evidence == Evidence.CUT
        and option.cued >= (_ANNOUNCED if gentle else _CUED)
        and all(word[:1].isupper() or word in SMALL for word in (words[0], *words))
        and not any(
            part.reading.tokens[place].text[:1].isupper()
            for place in (option.first - 1, option.last + 1)
            if part.low(place)
        )
    )


def holding(part: Part, match: Match) -> tuple[str, ...]:
    """The words of a part that negate, condition, except or repeat it, or leave a choice, where no sure value holds them."""
    kept = 0
    for option in match.options.values():
        kept |= option.mask
    tokens = part.reading.tokens
    starts = {one.first for one in part.found}
    return tuple(
        tokens[place].text
        for place in bits(((1 << part.stop) - 1) & ~((1 << part.first) - 1) & ~kept)
        if any(
            said in _HOLDING or (said == "or" and match.profile.acts)
            for said in accumulate((one.low for one in part.tokens[place - part.first :][:3]), "{} {}".format)
        )
        and not (place + 1 in starts and tokens[place].low in ("until", "till", "but"))
        and not (part.question and tokens[place].low in GROUPS["question"])
        and not is_own(match.profile, tokens[place].low)
        and not (tokens[place].low == "provided" and part.low(place + 1) not in _CLAUSE)
    )
