"""How sure a match is: a logistic model over margins, unexplained words and the evidence of each value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from apps.plans.local.matching import Match
from apps.plans.local.options import Option
from apps.plans.local.parts import Part, bits
from apps.plans.local.words import GROUPS, SMALL, UNPLANNED
from apps.plans.proposals import Evidence

WEIGHTS: Final = {
    "bias": -1.61,
    "close": -0.58,
    "gentle": 0.56,
    "loose": -1.06,
    "margin": 0.32,
    "misfit": -2.18,
    "missing": -1.01,
    "named": 1.53,
    "opening": -1.9,
    "other": 0.6,
    "proper": 0.81,
    "typed": 1.1,
    "unexplained": -2.37,
    "verbless": -0.58,
    "weak": -1.1,
}
"""Fitted by a ridge on 1,350 requests over nine sets of tools; features were dropped while each set left out got likelier."""
READY: Final = 0.85
CONFIRM: Final = 0.7
READING: Final = 0.45
"""From here on a tool that only reads is shown."""
ASK: Final = 0.17
"""From here on what a tool lacks is asked for."""
_FORMED: Final = frozenset({Evidence.TYPED, Evidence.QUOTED, Evidence.CHOICE, Evidence.CONTEXT})
_UNASKED: Final = 0.9
"""From here on a tool that changes something is sure though no verb asks for it."""
_ANNOUNCED: Final = 0.4
_CUED: Final = 0.8
_MARGIN: Final = 0.6
_MARGIN_OF_CHANGES: Final = 1.0
_AGREES: Final = 0.6
_MOST_MARGIN: Final = 6.0
_CLOSE: Final = 1.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """How likely a match is what was meant, and whether it may run at once."""

    p: float
    sure: bool
    """Nothing speaks against running it without a question."""


def judged(match: Match, rivals: Sequence[Match], *, gentle: bool) -> Verdict:
    """Judge a match beside the next best tools for the same part."""
    features = measured(match, rivals, gentle=gentle)
    total = WEIGHTS["bias"] + math.fsum(WEIGHTS[name] * value for name, value in features.items())
    p = 1 / (1 + math.exp(-total))
    is_clean = not match.weak and all(one.evidence != Evidence.CUT for one in match.options.values())
    plain = gentle and is_clean and match.verb * match.named == 1
    sure = (
        p >= (CONFIRM if plain else READY)
        and not features["unexplained"]
        and not features["missing"]
        and (gentle or not (match.plural or match.part.question))
        and (gentle or match.verb >= _AGREES or p >= _UNASKED)
        and features["margin"] >= (_MARGIN if gentle else _MARGIN_OF_CHANGES)
        and features["other"] >= _MARGIN / 2
    )
    return Verdict(p, sure)


def measured(match: Match, rivals: Sequence[Match], *, gentle: bool) -> dict[str, float]:
    """The features of a match."""
    near, part = [match.score - one.score for one in rivals], match.part
    cut = [one for one in match.options.values() if one.evidence == Evidence.CUT]
    return {
        "close": float(sum(one < _CLOSE for one in near)),
        "gentle": float(gentle),
        "loose": math.fsum(max(0.0, 1 - one.cued) for one in cut),
        "margin": min([_MOST_MARGIN, *near]),
        "misfit": math.fsum(1 - one.fit for one in match.options.values()),
        "missing": float(len(match.missing)),
        "named": match.named,
        "opening": float(not part.first),
        "other": min(_MOST_MARGIN / 2, match.rival),
        "proper": float(sum(one.text[:1].isupper() for one in cut)),
        "typed": float(sum(one.evidence in _FORMED for one in match.options.values())),
        "unexplained": float(match.unexplained.bit_count()),
        "verbless": float(not part.verb and not part.question),
        "weak": float(match.weak.bit_count()),
    }


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
            said in UNPLANNED or (said == "or" and match.profile.acts)
            for said in accumulate((one.low for one in part.tokens[place - part.first :][:3]), "{} {}".format)
        )
        and not (place + 1 in starts and tokens[place].low in ("until", "till", "but"))
        and not (
            part.question
            and tokens[place].low in GROUPS["question"]
            and (part.low(place), part.low(place + 1)) != ("when", "the")
        )
    )
