"""A suite is a module here with a function ``run(bench) -> Iterator[Row]``; its name is the module's.

One that measures on what the user brings says so by ``NEEDS_DATA = True``, and is run only by name.
"""

import pkgutil
from collections.abc import Callable, Iterator
from importlib import import_module

from apps.bench.bench import Bench
from apps.bench.rows import Row

Suite = Callable[[Bench], Iterator[Row]]


def names() -> list[str]:
    """The suites that there are."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def needs_data(name: str) -> bool:
    """Whether the suite of this name measures on a file that the user brings."""
    return bool(getattr(import_module(f"{__name__}.{name}"), "NEEDS_DATA", False))


def load(name: str) -> Suite:
    """The suite of this name."""
    run: Suite = import_module(f"{__name__}.{name}").run
    return run
