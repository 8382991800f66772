"""A suite is a function `run(bench) -> Iterator[Row]` in a module here."""

from typing import Final

SUITES: Final = ("inbox", "mcp", "memory", "planning", "recall", "scaling", "tasks")
