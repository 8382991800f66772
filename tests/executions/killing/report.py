"""A run as a page for people."""

import os
import platform
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.executions.killing.run import Story, Told


def write(path: Path, story: Story, told: Told, faults: Sequence[str]) -> None:
    """Write the page that tells of a run, and what the judge found in it."""
    world = told.world
    worker_steps = sum(step.tool is not None for one in world.executions for step in one.steps)
    path.write_text(
        "\n".join(
            [
                "# Executions and kill -9",
                "",
                (
                    f"{len(told.kills)} kills, {len(world.executions)} executions of ten steps, {story.at_once} at a time,"
                    f" {told.seconds / 60:.1f} minutes: **{len(faults)} violations**."
                ),
                "Again: `bin/test tests/executions/test_killing.py --tier long`.",
                "",
                (
                    f"Machine: {os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python"
                    f" {platform.python_version()}; load {os.getloadavg()[2]:.1f} over the last quarter of an hour."
                ),
                "",
                (
                    "Real processes: the web, three groups of Celery workers, beat, PostgreSQL, Valkey, and two MCP workers that"
                    " write down each call. A plan is four direct calls, two tasks, their waits, an aggregate that its principal"
                    " hands in over HTTP, and a report. What is killed gets SIGKILL with all its children, and is started again."
                ),
                "",
                *_table("killed", Counter(kill.target for kill in told.kills)),
                *_table(
                    "what the kills met",
                    {
                        "executions between their first and their last step": sum(
                            kill.under_way for kill in told.kills
                        ),
                        "fewest at one kill": min(kill.under_way for kill in told.kills),
                        **{
                            f"steps {status}": sum(kill.in_the_air.get(status, 0) for kill in told.kills)
                            for status in ("calling", "queued", "awaiting")
                        },
                    },
                ),
                *_table(
                    "what came of it",
                    {
                        **Counter(f"executions {one.status}" for one in world.executions),
                        "calls that the plans need": worker_steps,
                        "calls that the workers saw": len(world.calls),
                        "of these begun after their step was finished": sum("ran again" in fault for fault in faults),
                        "direct calls that were claimed again": sum(
                            max(step.attempts - 1, 0) for one in world.executions for step in one.steps
                        ),
                        "runs of tasks that were taken over": sum(
                            step.task.fence - 1 for one in world.executions for step in one.steps if step.task
                        ),
                    },
                ),
                "What is checked of each execution:",
                "",
                "- It is complete, and so are its ten steps.",
                "- No call of a tool began after its step was finished, and there are no more calls than claims.",
                "- Each envelope is its step's own, with the result that the tool makes of what the step before made, and",
                "  names the task, run and pointer of the task's record.",
                "- Each task has one receipt that it is queued, caused by the plan's, and one that it is complete, which the",
                "  record names and which closes what was owed. There are no tasks that no step knows.",
                "- The aggregate was asked for once and answered once. The plan's receipt goes back to the request, and is",
                "  closed by the one receipt that the execution names as its end. Memory holds one trace.",
                "",
                "All of these tools may be run twice, as tools that only read may. What has an effect is told of by",
                "`test_a_tool_that_may_not_be_run_twice_is_called_once_whatever_is_killed`: it is called once at most, and a",
                "step whose call was cut off says so (`outcome_unknown`).",
            ]
        )
        + "\n",
        encoding="utf-8",
    )


def _table(title: str, figures: dict[str, int]) -> list[str]:
    return [f"| {title} | |", "|---|---:|", *(f"| {name} | {count:,} |" for name, count in figures.items()), ""]
