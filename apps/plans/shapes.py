"""What plans and those who carry them out write and read alike: references between steps, and bounds of cost."""

import re
from typing import Annotated, Final

from pydantic import Field

OPENING: Final = "{{"
REFERENCE: Final = re.compile(r"\{\{([A-Za-z0-9][A-Za-z0-9_-]*)\.([A-Za-z0-9_$-]+(?:\.[A-Za-z0-9_$-]+)*)\}\}")
"""The step, and the path into its result."""
RESULT_POINTER: Final = "result_pointer"
_PLACE: Final = re.compile(r"[0-9]{1,9}")

MOST_MONEY: Final = 1_000_000
Money = Annotated[float, Field(ge=0, le=MOST_MONEY)]


def place_in_list(part: str) -> int | None:
    """The place in a list that a part of a path names; None if it names none that a list can have."""
    return int(part) if _PLACE.fullmatch(part) else None
