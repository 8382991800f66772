"""How fast the product is and how good its plans are, beside others."""

import sys
from pathlib import Path
from typing import Final

PYTHON_CLIENT: Final = str(Path(__file__).parents[1] / "clients/python/src")
sys.path.append(PYTHON_CLIENT)
