"""From the JSON of an answer to its shape."""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from functools import cache
from typing import Any, TypeVar, get_args

S = TypeVar("S")


def decode(shape: Callable[..., S], document: Mapping[str, Any]) -> S:
    """Read an answer. Unknown members are ignored."""
    kinds = _kinds(shape)
    return shape(**{name: _value(kinds[name], value) for name, value in document.items() if name in kinds})


@cache
def _kinds(shape: Any) -> dict[str, Any]:
    """For each member of a shape: the shape or the type in it that JSON does not have; else None."""
    named = {member.name: (member.type, *get_args(member.type)) for member in fields(shape)}
    return {
        name: next((kind for kind in kinds if kind is datetime or is_dataclass(kind)), None)
        for name, kinds in named.items()
    }


def _value(kind: Any, value: Any) -> Any:
    if kind is None or value is None:
        return value
    if isinstance(value, list):
        return [_value(kind, one) for one in value]
    return datetime.fromisoformat(value) if kind is datetime else decode(kind, value)
