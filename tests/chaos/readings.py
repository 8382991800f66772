"""What a long run costs as it goes on: latency, memory, connections and room on disk."""

from statistics import median
from typing import Final

import psutil

from tests.chaos.ground import Ground
from tests.chaos.history import NEVER, Call, History, Json, now

# "livez" does nothing: it tells how fast the machine is just then.
_VERBS: Final = ("queue", "lease", "complete", "read", "ack", "livez")
_DATABASE: Final = """
    select count(*), pg_database_size(current_database()), pg_total_relation_size('task_live'),
        (select sum(n_dead_tup) / greatest(sum(n_live_tup), 1) from pg_stat_user_tables)
    from pg_stat_activity where datname = current_database() and backend_type = 'client backend'
"""


def reading(ground: Ground, history: History, probe: str, since: float) -> Json:
    """What was asked since then, and what the product occupies now.

    :param probe: the actor by whose calls latency is told: medians, in milliseconds.
    :return: memory in MB, without shared pages.
    """
    calls = [call for call in list(history.calls) if call.begin >= since]
    ((connections, database, live, dead),) = ground.ask_database(_DATABASE, "postgres")
    return {
        "tasks_per_second": round(sum(call.verb == "queue" and call.ok for call in calls) / (now() - since), 1),
        "latency": {verb: _latency([call for call in calls if call.actor == probe], verb) for verb in _VERBS},
        "memory": {name: round(sum(map(_private, ground.family(name))) / 2**20) for name in ground.kept},
        "connections": connections,
        "database_mb": round(database / 2**20),
        "live_tasks_mb": round(live / 2**20, 1),
        "dead_rows_per_row": round(float(dead), 3),
    }


def _latency(calls: list[Call], verb: str) -> float:
    done = [call.end - call.begin for call in calls if call.verb == verb and call.end != NEVER]
    return round(1000 * median(done or [0.0]), 1)


def _private(process: psutil.Process) -> int:
    try:
        memory = process.memory_info()
    except psutil.NoSuchProcess:
        return 0
    return int(memory.rss - memory.shared)
