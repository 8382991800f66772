"""The product under faults: real processes, actors over HTTP, and a judge of what they were answered."""

import sys
from typing import Final

sys.path.append("clients/python/src")
EXECUTED: Final = "chaos_executed"
"""A task type whose handler runs in Celery."""
