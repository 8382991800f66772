"""A suite is a module here with a function `run(bench) -> Iterator[Row]`; its name is the module's.

A suite that needs data from the user says `NEEDS_DATA = True` and is run by name only.
"""

import pkgutil
from importlib import import_module
from pathlib import Path
from typing import Any


def names() -> list[str]:
    """The suites that there are."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def needs_data(name: str) -> bool:
    """Whether the suite measures on a file that the user brings."""
    return "NEEDS_DATA = True" in (Path(__path__[0]) / f"{name}.py").read_text()


def load(name: str) -> Any:
    """The function that runs the suite of this name."""
    return import_module(f"{__name__}.{name}").run
