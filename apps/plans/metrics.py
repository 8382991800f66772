"""What the planner counts."""

from typing import Final

from apps.core.metrics import Counter, Histogram

GENERATION: Final = Histogram(
    "delegate_plan_generation_with_receipt_duration_seconds",
    "From a request for a plan until the plan and its receipt are stored.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
MODEL_CALLS: Final = Counter(
    "delegate_model_questions", "Requests that the planner's language model was asked about.", ["outcome"]
)
MODEL_SECONDS: Final = Histogram(
    "delegate_model_duration_seconds",
    "From a question to the planner's language model until its answer, repairs included.",
    buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 60),
)
