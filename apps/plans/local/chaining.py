"""What one step gives another: the results of earlier parts, and of gentle tools that no part asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from apps.plans.catalogue import types_meet
from apps.plans.local.index import LOOKED_UP, Profile
from apps.plans.local.matching import SAME_ROOT, Match, Matcher
from apps.plans.local.options import FIRM, Option, together
from apps.plans.local.params import Param
from apps.plans.local.parts import Part, mask_of
from apps.plans.local.words import GROUPS, near, pieces, stem
from apps.plans.proposals import Evidence
from apps.plans.shapes import RESULT_POINTER, RESULT_TEXT

_GIVERS, _MOST_GIVERS = 20, 4
_FAIR: Final = 0.7
"""From here on a result serves a param though no word of the request says so."""
_BACK: Final = (GROUPS["back"] - {"these", "those"}) | {"there", "him", "her"}
_POINTER: Final = stem("pointer")
_GIVEN: Final = frozenset(["date", "datetime", "time", "period", "duration", "number", "money", "knob", "flag"])
"""Roles whose values only the asker knows."""
_TEXTS: Final = frozenset(
    map(
        stem,
        ["text", "content", "body", "transcript", "markdown", "summary", "translation", "result", "output", "message"],
    )
)


@dataclass(frozen=True, slots=True)
class Source:
    """A value that a step gives: the step, by its match, and the path into its result."""

    match: Match
    path: tuple[str, ...]
    listed: bool = False
    """It is one item of a list."""


def given(
    part: Part, profile: Profile, earlier: Sequence[Match], is_gentle: Callable[[str], bool]
) -> dict[str, list[Option]]:
    """Return what the parts before can give to the params of a tool: their results, and what they were given."""
    found: dict[str, list[Option]] = {}
    back = mask_of(token.place for token in part.tokens if token.low in _BACK)
    for match in reversed(earlier):
        for param in profile.params:
            options = found.setdefault(param.name, [])
            if param.required or param.role == "text":
                options += _results(part, param, profile, match, back)
            same = match.options.get(param.name)
            is_result = param.role == "text" and bool(options)  # which is meant by "it", not what it was made of
            if same is not None and not param.choices and not is_result and (back or param.required):
                evidence = same.evidence if back or is_gentle(profile.tool.uid) else Evidence.CUT
                # "book it for Ann": one word may stand for several values.
                options += [Option(same.value, evidence, {}, mask, same.text) for mask in sorted({back, 0})]
    return found


def _results(part: Part, param: Param, profile: Profile, match: Match, back: int) -> Iterator[Option]:
    for how, path, names, is_item in _outputs(match.profile, param):
        if path[0] in match.options and not path[1:] and param.role != "text":  # It gives back what it was given.
            continue
        is_text = path == (RESULT_TEXT,)
        stems = [(at, one) for at, one in part.stems.items() if not (is_text and profile.explains(one) >= FIRM)]
        said = mask_of(at for at, one in stems if _speaks(one, names))
        if (back | said) or (param.required and how >= _FAIR):
            told = {"ref": 1.0, "ref.unlike": 1 - how, "ref.spare": float(not param.required)}
            text = " ".join(sorted({*match.profile.nouns, *names}))
            evidence = Evidence.STEP if path[:-1] == () else Evidence.ASSUMED
            for mask in sorted({back | said, 0}) if param.required else (back | said,):
                yield Option(Source(match, path, is_item), evidence, told, mask, text)


_Output = tuple[float, tuple[str, ...], frozenset[str], bool]
"""What of a result could be a value: how well, the path, the words that may name it, and is it but one item of a list?"""


def _outputs(profile: Profile, param: Param) -> Iterator[_Output]:
    """What of a tool's result could be a param's value."""
    own, is_text = set(param.words), param.role == "text"
    whose = own - {_POINTER}
    if _POINTER in own and any(near(one, other) for one in whose for other in (*profile.nouns, profile.verb)):
        yield 0.8, (RESULT_POINTER,), frozenset(profile.nouns), param.array
    if is_text and param.type == "string":
        told = (word for word, sure in profile.vocabulary.items() if sure >= FIRM)
        yield 0.6, (RESULT_TEXT,), frozenset((*profile.nouns, *told)), param.array
    for key, schema in profile.tool.outputs.items():
        inside = () if is_text else profile.tool.within(key).items()
        for path, found in (((key,), schema), *inside):
            words = frozenset(map(stem, pieces(path[-1])))
            is_item = param.array and not types_meet(found, param.schema)
            meets = types_meet(found, param.schema.get("items", True) if is_item else param.schema)
            how = _feeds(path[-1], words, found, param, profile) if meets else 0.0
            if how >= _FAIR or (how and not path[1:]):
                yield how, path, words - {"id"}, is_item


def _feeds(key: str, words: frozenset[str], schema: Any, param: Param, profile: Profile) -> float:
    own, text = frozenset(param.words), param.role == "text"
    said = schema.get("format") if isinstance(schema, Mapping) else None
    common = (own & words) - {"id", "name"}
    if (key == param.name and words != {"id"}) or words == own:
        return 1.0
    if words == {"id"} and "id" in own and (own - {"id"}) & set(profile.nouns):
        return 0.9
    if (said and said == param.format) or (param.role in LOOKED_UP and param.role in words and param.role != "id"):
        return 0.8
    if (text and words & _TEXTS) or (common and 1 in (len(words), len(own))) or key == param.name:
        return 0.75 if text else _FAIR
    return 0.5 if text else 0.0


def _speaks(stemmed: str, names: Iterable[str]) -> bool:
    return any(near(stemmed, name) >= SAME_ROOT for name in names)


def produced(
    match: Match, matcher: Matcher, is_usable: Callable[[str], bool], spoken: Iterable[Profile]
) -> dict[str, list[Option]]:
    """Return what gentle tools, for texts those `spoken` of as well, could give to the params that nothing sure fills."""
    found: dict[str, list[Option]] = {}
    feedings: dict[str, list[Match]] = {}
    for param in match.profile.params:
        filled = match.options.get(param.name)
        is_text = not _TEXTS.isdisjoint(param.words)
        is_sure = filled is not None and not is_text and filled.evidence != Evidence.CUT and filled.fit >= _FAIR
        is_sought = param.required or (param.role in LOOKED_UP and match.unexplained)
        if not is_sought or is_sure or param.choices or param.role in _GIVEN:
            continue
        options: list[Option] = []
        for profile in (*(spoken if is_text else ()), *matcher.library.givers(param, _GIVERS)):
            uid = profile.tool.uid
            if len(options) < _MOST_GIVERS and profile is not match.profile and matcher.is_gentle(uid):
                options += _fed(match, param, profile, matcher, feedings) if is_usable(uid) else ()
        if options:
            found[param.name] = options
    return found


def _fed(
    match: Match, param: Param, profile: Profile, matcher: Matcher, feedings: dict[str, list[Match]]
) -> Iterator[Option]:
    """The value that a tool gives, if what the match does not take fills all that the tool requires.

    :param feedings: what the tools gave to other params, by uid: one call may give several.
    """
    nothing: _Output = (0.0, ("",), frozenset(), False)
    how, path, names, is_item = max(_outputs(profile, param), key=lambda one: one[:2], default=nothing)
    if not how or path[-1] in {one.name for one in profile.params}:
        return
    part, uid = match.part, profile.tool.uid
    own = {at: one for at, one in part.stems.items() if at != part.verb_at and match.profile.explains(one) < SAME_ROOT}
    mask = mask_of(at for at, one in own.items() if _speaks(one, profile.nouns))
    known = mask | mask_of(at for at, one in own.items() if profile.explains(one) >= SAME_ROOT)
    is_kin = any(near(noun, one) for noun in profile.nouns for one in (*param.own, *match.profile.nouns))
    is_sure = not path[:-1] or matcher.is_gentle(match.profile.tool.uid)
    evidence = Evidence.STEP if is_sure else Evidence.ASSUMED
    for feeding in feedings.get(uid, ()):
        yield Option(Source(feeding, path, is_item), evidence, {"fed.again": 1.0, "fed.unlike": 1 - how})
    if uid not in feedings:
        names_of = {other.name for other in profile.params if not other.choices}
        shared = {
            name: [Option(one.value, one.evidence, {"fed.shared": 1.0}, 0, one.text)]
            for name, one in match.options.items()
            if one.evidence in (Evidence.TYPED, Evidence.QUOTED) and name in names_of
        }
        feedings[uid] = [one for one in matcher.match(part, profile, shared, match)[:2] if not one.missing]
    for feeding in feedings[uid]:
        values = feeding.options.values()
        if how < _FAIR and not mask and (not values or any(one.evidence == Evidence.CUT for one in values)):
            continue
        facts = {
            "fed": 1.0,
            "fed.unlike": 1 - how,
            "fed.foreign": float(bool(path[:-1]) and param.role != "id"),
            "fed.named": float(mask > 0),
            "fed.empty": float(not values),
            "fed.required": float(any(one.required and one.name in feeding.options for one in profile.params)),
            "fed.optional": float(sum(not one.required and one.name in feeding.options for one in profile.params)),
            "fed.kin": float(is_kin),
            "fed.loose": sum(1 - one.fit for one in values),
        }
        told = together(*(one.told for one in values), facts)
        text = " ".join(sorted({*profile.nouns, *names}))
        for said in sorted({known, 0}):
            yield Option(Source(feeding, path, is_item), evidence, told, said | feeding.used, text)
