"""Commands of executions: start, advance, hand in, decide, cancel, call one tool of a worker, and cancel a job of its own.

Locks are taken in the order execution, its steps, then whatever lies below. Nothing here holds a transaction while
it talks to a worker.
"""

from apps.executions.services.advancing import advance
from apps.executions.services.answering import Handed, cancel, decide_step, submit_step_result
from apps.executions.services.calling import Answered, CallMode, TaskWishes, call_worker
from apps.executions.services.canceling import cancel_job
from apps.executions.services.replanning import replan
from apps.executions.services.starting import Budget, start

__all__ = [
    "Answered",
    "Budget",
    "CallMode",
    "Handed",
    "TaskWishes",
    "advance",
    "call_worker",
    "cancel",
    "cancel_job",
    "decide_step",
    "replan",
    "start",
    "submit_step_result",
]
