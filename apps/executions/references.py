"""References between steps, `{{step-1.result_pointer}}`, resolved from the envelopes of finished steps."""

import json
from collections.abc import Callable, Iterator, Mapping
from re import Match
from typing import Any, Final

from apps.executions.errors import UnresolvedReference
from apps.plans.shapes import OPENING, REFERENCE, RESULT_POINTER, place_in_list

Envelope = Mapping[str, Any]
PayloadOf = Callable[[str], Any]

# The longest text of one reference within a text, and of the whole text, as in a plan.
_ONE: Final = 2_000
_WHOLE: Final = 20_000


def steps_named_in(value: Any) -> frozenset[str]:
    """The ids of the steps that a JSON value refers to."""
    return frozenset(match[1] for text in _texts(value) for match in REFERENCE.finditer(text))


def resolve(value: Any, *, envelopes: Mapping[str, Envelope], payload_of: PayloadOf) -> Any:
    """The value with every reference replaced.

    A reference that is the whole text becomes the named value, of any type; a reference inside a text becomes text.
    `payload_of` returns the payload of a step whose envelope holds only a pointer.

    :raises UnresolvedReference: if a step has no envelope, or its result lacks the field.
    """
    if isinstance(value, str):
        return _resolve_text(value, envelopes, payload_of)
    if isinstance(value, Mapping):
        return {name: resolve(item, envelopes=envelopes, payload_of=payload_of) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [resolve(item, envelopes=envelopes, payload_of=payload_of) for item in value]
    return value


def readable(text: str, *, envelopes: Mapping[str, Envelope]) -> str:
    """A text for readers, with its references replaced by short texts.

    A result behind a pointer becomes the pointer. A reference that names nothing stays.
    """

    def named(match: Match[str]) -> str:
        try:
            return _as_text(_named(match, envelopes, _not_loaded))[:_ONE]
        except UnresolvedReference:
            return str(envelopes.get(match[1], {}).get(RESULT_POINTER) or match[0])

    return REFERENCE.sub(named, text)[:_WHOLE] if OPENING in text else text


def _not_loaded(step_id: str) -> Any:
    raise UnresolvedReference(f"The result of {step_id} is not loaded.")


def _resolve_text(text: str, envelopes: Mapping[str, Envelope], payload_of: PayloadOf) -> Any:
    if OPENING not in text:
        return text
    whole = REFERENCE.fullmatch(text)
    if whole is not None:
        return _named(whole, envelopes, payload_of)
    return REFERENCE.sub(lambda match: _as_text(_named(match, envelopes, payload_of)), text)


def _named(match: Match[str], envelopes: Mapping[str, Envelope], payload_of: PayloadOf) -> Any:
    step_id, path = match[1], match[2].split(".")
    envelope = envelopes.get(step_id)
    if envelope is None:
        raise UnresolvedReference(f"{match[0]} names a step without a result.")
    if path == [RESULT_POINTER] and envelope.get(RESULT_POINTER):
        return envelope[RESULT_POINTER]
    payload = envelope.get("payload")
    here: Any = payload_of(step_id) if payload is None else payload
    for part in path:
        here = _child(here, part, match[0])
    return here


def _child(here: Any, part: str, reference: str) -> Any:
    if isinstance(here, Mapping) and part in here:
        return here[part]
    if isinstance(here, list) and (place := place_in_list(part)) is not None and place < len(here):
        return here[place]
    raise UnresolvedReference(f"{reference} names nothing in that step's result: there is no {part!r}.")


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
