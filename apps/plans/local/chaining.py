"""What one step gives another: the results of earlier parts, and of gentle tools that no part asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from apps.plans.catalogue import types_meet
from apps.plans.local.index import Profile
from apps.plans.local.matching import Match, Matcher
from apps.plans.local.options import FIRM, Option
from apps.plans.local.params import Param
from apps.plans.local.parts import Part
from apps.plans.local.words import GROUPS, near, pieces, stem
from apps.plans.proposals import UNSURE, Evidence
from apps.plans.shapes import RESULT_POINTER, RESULT_TEXT

_GIVERS: Final = 20
_MOST_GIVERS: Final = 3
_FAIR: Final = 0.7
"""From here on a result serves a param though no word of the request says so."""
_EXACT: Final = 0.9
_FIRST_OF_MANY: Final = 0.2
_WHOLE: Final = 0.6
_TOLD: Final = 0.6
_LOOSE: Final = 0.5
_BY_NAME: Final = 0.3
_CALLED: Final = 0.5
_FOUND: Final = frozenset({"id", "email", "user", "phone", "channel", "slug", "path"})
"""Roles whose values people look up by a name."""
_SAME_ROOT: Final = 0.8
_BACK: Final = (GROUPS["back"] - {"these", "those"}) | {"there", "him", "her"}
_POINTER: Final = stem("pointer")
_GIVEN: Final = frozenset({"date", "datetime", "time", "period", "duration", "number", "money", "knob", "flag"})
"""Roles whose values only the asker knows."""
_TEXTS: Final = frozenset(
    map(
        stem,
        ("text", "content", "body", "transcript", "markdown", "summary", "translation", "result", "output", "message"),
    )
)
_INHERITED: Final = frozenset(
    {"id", "repo", "path", "slug", "channel", "user", "url", "date", "datetime", "name", "other"}
)
"""Roles whose values a later step takes over from an earlier one."""


@dataclass(frozen=True, slots=True)
class Source:
    """A value that a step gives: the step, by its match, and the path into its result."""

    match: Match
    path: tuple[str, ...]


def given(
    part: Part, profile: Profile, earlier: Sequence[Match], is_gentle: Callable[[str], bool]
) -> dict[str, list[Option]]:
    """Return what the parts before can give to the params of a tool: their results, and ids that they were given."""
    found: dict[str, list[Option]] = {}
    if not earlier:
        return found
    back = sum(1 << token.place for token in part.tokens if token.low in _BACK)
    for distance, match in enumerate(reversed(earlier)):
        for param in profile.params:
            if param.required or param.role == "text":
                options = found.setdefault(param.name, [])
                found_in = _results(part, param, profile, match, back=back, distance=distance)
                gentle = is_gentle(match.profile.tool.uid)
                inherited = match.options.get(param.name)
                options += [one for one in found_in if gentle or one.value.path != (RESULT_TEXT,)]
                if inherited is not None and param.required and param.role in _INHERITED and not param.choices:
                    gain = 1.1 if back else 0.8
                    sure = back or is_gentle(profile.tool.uid)
                    evidence = inherited.evidence if sure else Evidence.CUT
                    options.append(Option(inherited.value, evidence, gain, back, inherited.text))
    return found


def _results(part: Part, param: Param, profile: Profile, match: Match, *, back: int, distance: int) -> Iterator[Option]:
    for how, path, names in _outputs(match.profile, param):
        said = 0
        for place, stemmed in part.stems.items():
            is_own = path == (RESULT_TEXT,) and profile.explains(stemmed) >= FIRM
            if not is_own and any(near(stemmed, name) >= _SAME_ROOT for name in names):
                said |= 1 << place
        if (back | said) or (param.required and how >= _FAIR):
            gain = (1.6 if back or said else -0.9) + how - 0.1 * distance
            text = " ".join(sorted({*match.profile.nouns, *names}))
            evidence = Evidence.STEP if path[:-1] == () else Evidence.ASSUMED
            yield Option(Source(match, path), evidence, gain, back | said, text)


def _outputs(profile: Profile, param: Param) -> Iterator[tuple[float, tuple[str, ...], frozenset[str]]]:
    """What of a tool's result could be a param's value: how well, the path, and the words that may name it."""
    own = set(param.words)
    if _POINTER in own and any(
        near(word, other) for word in own - {_POINTER} for other in (*profile.nouns, profile.verb)
    ):
        yield 0.8, (RESULT_POINTER,), frozenset(profile.nouns)
    if param.role == "text" and param.type == "string":
        told = (word for word, sure in profile.vocabulary.items() if sure >= _TOLD)
        yield _WHOLE, (RESULT_TEXT,), frozenset((*profile.nouns, *told))
    for key, schema in profile.tool.outputs.items():
        words = frozenset(map(stem, pieces(key)))
        how = _feeds(key, words, schema, param, profile) if types_meet(schema, param.schema) else 0.0
        if how:
            yield how, (key,), words - {"id"}
        for path, sub in profile.tool.within(key).items() if param.role != "text" else ():
            words = frozenset(map(stem, pieces(path[-1])))
            how = _feeds(path[-1], words, sub, param, profile) if types_meet(sub, param.schema) else 0.0
            if how >= _FAIR:
                yield how - _FIRST_OF_MANY, path, words - {"id"}


def _feeds(key: str, words: frozenset[str], schema: Any, param: Param, profile: Profile) -> float:
    own = frozenset(param.words)
    said = schema.get("format") if isinstance(schema, Mapping) else None
    common = (own & words) - {"id", "name"}
    text = param.role == "text"
    rules = (
        (1.0, (key == param.name and words != {"id"}) or words == own),
        (0.9, words == {"id"} and "id" in own and bool((own - {"id"}) & set(profile.nouns))),
        (0.8, bool(said) and said == param.schema.get("format")),
        (0.8, param.role in _FOUND and param.role in words and param.role != "id"),
        (0.75, text and bool(words & _TEXTS)),
        (_FAIR, bool(common) and (len(words) == 1 or len(own) == 1)),
        (_FAIR, key == param.name),
        (0.5, text),
    )
    return max((how for how, holds in rules if holds), default=0.0)


def produced(match: Match, matcher: Matcher, is_usable: Callable[[str], bool]) -> dict[str, list[Option]]:
    """Return what gentle tools could give to the params of a tool that nothing in the request fills."""
    found: dict[str, list[Option]] = {}
    for param in match.profile.params:
        filled = match.options.get(param.name)
        if (
            not (param.required or (param.role in _FOUND and match.unexplained))
            or param.choices
            or param.role in _GIVEN
            or (filled is not None and filled.evidence != Evidence.CUT and filled.fit > _LOOSE)
        ):
            continue
        options: list[Option] = []
        for profile in matcher.library.givers(param, _GIVERS):
            uid = profile.tool.uid
            if len(options) == _MOST_GIVERS or profile is match.profile:
                continue
            if matcher.is_gentle(uid) and is_usable(uid):
                options += _fed(match, param, profile, matcher)
        if options:
            found[param.name] = options
    return found


def _fed(match: Match, param: Param, profile: Profile, matcher: Matcher) -> Iterator[Option]:
    """The value that a tool gives, if what the match does not take fills all that the tool requires."""
    how, path, names = max(_outputs(profile, param), key=lambda one: one[:2], default=(0.0, ("",), frozenset()))
    if how <= _FAIR or (path[:-1] and param.role != "id") or path[-1] in {one.name for one in profile.params}:
        return
    feeding = matcher.match(match.part, profile, {}, match)
    values = feeding.options.values()
    said = any(one.evidence in (*UNSURE, Evidence.QUOTED) for one in values)
    if feeding.missing or not (profile.tool.required or said) or any(one.fit < _EXACT for one in values):
        return
    gain = how - _BY_NAME if said else how + 0.3 * len(values) - 0.5
    part, named = match.part, 0
    for place, stemmed in part.stems.items():
        is_own = place == part.verb_at or match.profile.explains(stemmed) >= FIRM
        if not is_own and any(near(stemmed, noun) >= _SAME_ROOT for noun in profile.nouns):
            named |= 1 << place
    mask = named
    for one in values:
        mask |= one.mask
    gain += _CALLED if named else 0.0
    text = " ".join(sorted({*profile.nouns, *names}))
    is_one = not path[:-1] or matcher.is_gentle(match.profile.tool.uid)
    yield Option(Source(feeding, path), Evidence.STEP if is_one else Evidence.ASSUMED, gain, mask, text)
