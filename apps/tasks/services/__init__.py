"""The verbs of AsyncGate. Each is one transaction, inside the one that acts for the caller."""

from apps.tasks.services.artifacts import prepare, store_artifact
from apps.tasks.services.ending import cancel, cancel_many, complete, fail, prove, refuse_stranger, release
from apps.tasks.services.leasing import heartbeat, lease
from apps.tasks.services.queueing import POLL_SECONDS, queue
from apps.tasks.services.results import fetch_result
from apps.tasks.services.sweeping import SWEEP_BATCH, sweep, unannounced
from apps.tasks.services.types import TypeDraft, pause_queue, register_type, resume_queue
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
    "POLL_SECONDS",
    "SWEEP_BATCH",
    "Beat",
    "BeatAnswer",
    "Delivery",
    "Failure",
    "Finished",
    "Grant",
    "QueueRequest",
    "QueuedTask",
    "TypeDraft",
    "Verdict",
    "cancel",
    "cancel_many",
    "complete",
    "fail",
    "fetch_result",
    "heartbeat",
    "lease",
    "pause_queue",
    "prepare",
    "prove",
    "queue",
    "refuse_stranger",
    "register_type",
    "release",
    "resume_queue",
    "store_artifact",
    "sweep",
    "unannounced",
]
