"""A handler that may fail, or take longer than a lease."""

import time
from typing import Any

from apps.tasks.handlers import Canceled, Context, Failed, Result, handler
from apps.tasks.shapes import Backoff, RegisterTaskType
from tests.chaos import EXECUTED


@handler(
    RegisterTaskType(
        name=EXECUTED,
        queue="execute",
        lease_seconds=2,
        max_expiries=20,
        backoff=Backoff(base_seconds=0.2, cap_seconds=1),
    )
)
def executed(context: Context, params: dict[str, Any]) -> Result:
    plan = params.get("plan", ())
    act = plan[context.run_id - 1] if context.run_id <= len(plan) else "complete"
    context.heartbeat(progress=50, checkpoint={"run": context.run_id})
    if act == "fail":
        raise Failed("planned", "It was to fail.", retryable=True)
    until = time.monotonic() + (1.0 if act == "slow" else 0.0)
    while time.monotonic() < until:
        if context.cancelled:
            raise Canceled
        time.sleep(0.05)
    return Result(summary="Done.")
