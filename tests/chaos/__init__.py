"""The product under faults: real processes, actors over HTTP, and a judge of what they were answered."""

import sys
from pathlib import Path
from typing import Final

sys.path.append(str(Path(__file__).parents[2] / "clients/python/src"))
EXECUTED: Final = "chaos_executed"
"""A task type whose handler runs in Celery."""
