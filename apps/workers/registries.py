"""Where sources say that workers are. Speaks with strangers and reads files; touches no database."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from apps.core.schemas import parse
from apps.workers.errors import BadSettings
from apps.workers.shapes import StatedWorker
from apps.workers.states import SourceKind

LOOK_EVERY: Final[Mapping[SourceKind, timedelta | None]] = {SourceKind.PULL: None}
"""How often a source is looked at; None: as often as what it names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A place that a source names: its key there, and what the source says of it: an endpoint, or a whole manifest."""

    key: str
    stated: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What a look has brought.

    `complete`: what is not named is not there; else only what is in `gone` has gone.
    """

    cursor: str
    complete: bool
    named: tuple[Named, ...] = ()
    gone: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A source, and how far it has been read."""

    kind: SourceKind
    address: str
    settings: Mapping[str, Any]
    cursor: str


def check_settings(kind: SourceKind, address: str, settings: Mapping[str, Any]) -> None:
    """:raises Invalid: if a source of this kind takes other settings."""
    wanted = _SETTINGS[kind]
    if unknown := sorted(settings.keys() - wanted):
        raise BadSettings(f"A source of kind {kind} has no setting {unknown[0]!r}; it has {', '.join(sorted(wanted))}.")
    parse(StatedWorker, {**settings.get("worker", {}), "endpoint": address})


_SETTINGS: Final[Mapping[SourceKind, frozenset[str]]] = {SourceKind.PULL: frozenset({"worker"})}


def look(source: Source) -> News:
    """Ask a source where workers are, or what has changed of that since the last look.

    :raises CallFailed: one of its kinds.
    """
    return _pull(source)


def _pull(source: Source) -> News:
    stated = {**source.settings.get("worker", {}), "endpoint": source.address}
    return News(cursor="", complete=True, named=(Named(key=source.address, stated=stated),))
