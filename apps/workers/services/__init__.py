"""Commands of the registry. Health is a matter of deadlines, so the database's clock decides."""

from apps.workers.services.arranging import rearrange
from apps.workers.services.calls import RECENT_CALLS, fold_calls, record_call, take_call
from apps.workers.services.discovering import DEFAULT_EVERY, add_source, change_secret, discover, remove_source
from apps.workers.services.forgetting import forget_events
from apps.workers.services.health import HEARTBEAT_EVERY, LATE_AFTER, OFFLINE_AFTER, Beaten, heartbeat, mark_late
from apps.workers.services.judging import lapse_trust
from apps.workers.services.keys import enroll_key, revoke_key
from apps.workers.services.probing import PROBE_BEATING_EVERY, PROBE_EVERY, PROBE_LOST_EVERY, probe
from apps.workers.services.quarantining import quarantine, release
from apps.workers.services.registering import Registration, expel, register, unregister
from apps.workers.services.remembering import Restored, remember, restore

__all__ = [
    "DEFAULT_EVERY",
    "HEARTBEAT_EVERY",
    "LATE_AFTER",
    "OFFLINE_AFTER",
    "PROBE_BEATING_EVERY",
    "PROBE_EVERY",
    "PROBE_LOST_EVERY",
    "RECENT_CALLS",
    "Beaten",
    "Registration",
    "Restored",
    "add_source",
    "change_secret",
    "discover",
    "enroll_key",
    "expel",
    "fold_calls",
    "forget_events",
    "heartbeat",
    "lapse_trust",
    "mark_late",
    "probe",
    "quarantine",
    "rearrange",
    "record_call",
    "register",
    "release",
    "remember",
    "remove_source",
    "restore",
    "revoke_key",
    "take_call",
    "unregister",
]
