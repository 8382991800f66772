"""What plans and those who carry them out write and read alike: references between steps, and bounds of cost."""

import re
from typing import Annotated, Final

from pydantic import Field

OPENING: Final = "{{"
REFERENCE: Final = re.compile(r"\{\{([A-Za-z0-9][A-Za-z0-9_-]*)\.([A-Za-z0-9_$-]+(?:\.[A-Za-z0-9_$-]+)*)\}\}")
"""The step, and the path into its result."""
RESULT_POINTER: Final = "result_pointer"

MOST_MONEY: Final = 1_000_000
Money = Annotated[float, Field(ge=0, le=MOST_MONEY)]
