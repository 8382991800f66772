"""How fast the product is and how good its plans are, beside others."""

import sys
from typing import Final

PYTHON_CLIENT: Final = "clients/python/src"
sys.path.append(PYTHON_CLIENT)
