"""A suite is a function `(bench) -> Iterator[Row]` in a module here."""

from importlib import import_module
from typing import Any, Final

SUITES: Final = {
    "inbox": "inbox:run",
    "mcp": "mcp:run",
    "memory": "memory:run",
    "planning": "planning:run",
    "recall": "recall:run",
    "scaling": "scaling:run",
    "tasks": "tasks:run",
}
NEEDS_DATA: Final = frozenset({"recall"})
"""Suites that measure on a file that the user brings."""


def load(name: str) -> Any:
    """The function that runs the suite of this name."""
    module, _, function = SUITES[name].partition(":")
    return getattr(import_module(f"{__name__}.{module}"), function)
