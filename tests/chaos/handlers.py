"""A handler that may fail, or take longer than a lease."""

import time
from datetime import timedelta
from typing import Any

from apps.tasks.handlers import Canceled, Context, Failed, Result, handler
from tests.chaos import EXECUTED


@handler(
    task_type=EXECUTED,
    params_schema={"type": "object"},
    lease=timedelta(seconds=2),
    max_attempts=3,
    max_expiries=20,
    backoff=timedelta(seconds=0.2),
    backoff_cap=timedelta(seconds=1),
)
def executed(context: Context, params: dict[str, Any]) -> Result:
    plan = params["plan"]
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
