"""A handler that keeps count by checkpoints, and may take longer than a lease."""

import os
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from apps.tasks.handlers import Canceled, Context, Failed, Result, handler

if _OFF := float(os.environ.get("GATEHOUSE_CHAOS_CLOCK", "0")):
    import time_machine

    # The whole process lives at another time; what it measures by the monotonic clock goes on as it was.
    time_machine.travel(datetime.now(UTC) + timedelta(seconds=_OFF), tick=True).start()

TYPE = "chaos_executed"
MAX_ATTEMPTS, MAX_EXPIRIES = 3, 20


@handler(
    task_type=TYPE,
    params_schema={"type": "object"},
    lease=timedelta(seconds=2),
    max_attempts=MAX_ATTEMPTS,
    max_expiries=MAX_EXPIRIES,
    backoff=timedelta(seconds=0.2),
    backoff_cap=timedelta(seconds=1),
)
def executed(context: Context, params: dict[str, Any]) -> Result:
    plan = params["plan"]
    act = plan[context.run_id - 1] if context.run_id <= len(plan) else "complete"
    context.heartbeat(progress=50, checkpoint={"run": context.run_id})
    if act == "slow":
        _wait(context, seconds=1.0)
    elif act == "fail":
        raise Failed("planned", "It was to fail.", retryable=True)
    return Result(content={"run": context.run_id}, summary="Done.")


def _wait(context: Context, *, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if context.cancelled:
            raise Canceled
        time.sleep(0.05)
