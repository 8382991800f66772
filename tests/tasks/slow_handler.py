"""A handler for tests with real workers: says that it runs, then waits to be let go."""

import time
from pathlib import Path
from typing import Any

from apps.tasks.handlers import Canceled, Context, Failed, Result, handler
from apps.tasks.shapes import RegisterTaskType

PATIENCE = 60.0


@handler(
    RegisterTaskType(
        name="slow_for_tests",
        params_schema={"type": "object", "properties": {"folder": {"type": "string"}}, "required": ["folder"]},
        queue="execute",
        lease_seconds=3,
        max_expiries=5,
    )
)
def slow(context: Context, params: dict[str, Any]) -> Result:
    folder = Path(params["folder"])
    (folder / f"running-{context.run_id}").touch()
    context.progress(50, "half way")
    deadline = time.monotonic() + PATIENCE
    while not (folder / "go").exists():
        if context.cancelled:
            raise Canceled
        if time.monotonic() > deadline:
            raise Failed("not_let_go", "Nobody let it go.", retryable=False)
        time.sleep(0.05)
    return Result(summary=f"Run {context.run_id} for {context.caller.name}.")
