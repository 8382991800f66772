"""The verbs of AsyncGate. Each is one transaction, inside the one that acts for the caller."""

from apps.tasks.services.artifacts import prepare, store_artifact
from apps.tasks.services.ending import cancel, complete, fail, release
from apps.tasks.services.leasing import heartbeat, lease
from apps.tasks.services.queueing import queue
from apps.tasks.services.results import fetch_result
from apps.tasks.services.sweeping import sweep
from apps.tasks.services.types import pause_queue, register_type, resume_queue
from apps.tasks.shapes import (
    Beat,
    BeatAnswer,
    Delivery,
    Failure,
    Finished,
    Grant,
    QueuedTask,
    QueueRequest,
    Verdict,
)

__all__ = [
    "Beat",
    "BeatAnswer",
    "Delivery",
    "Failure",
    "Finished",
    "Grant",
    "QueueRequest",
    "QueuedTask",
    "Verdict",
    "cancel",
    "complete",
    "fail",
    "fetch_result",
    "heartbeat",
    "lease",
    "pause_queue",
    "prepare",
    "queue",
    "register_type",
    "release",
    "resume_queue",
    "store_artifact",
    "sweep",
]
