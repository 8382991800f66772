"""What the planner counts."""

from typing import Final

from apps.core.metrics import Histogram

GENERATION: Final = Histogram(
    "delegate_plan_generation_with_receipt_duration_seconds",
    "From a request for a plan until the plan and its receipt are stored.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
