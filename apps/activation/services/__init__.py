"""Commands on targets, and waking. The row of a dispatch is locked before that of its target; no inbox ever is."""

from apps.activation.services.targets import (
    TargetChange,
    TargetWithSecret,
    add,
    change,
    delete,
    resume,
    rotate_secret,
    stop,
)
from apps.activation.services.waking import Pinged, announce_due, ping, wake, wake_next

__all__ = [
    "Pinged",
    "TargetChange",
    "TargetWithSecret",
    "add",
    "announce_due",
    "change",
    "delete",
    "ping",
    "resume",
    "rotate_secret",
    "stop",
    "wake",
    "wake_next",
]
