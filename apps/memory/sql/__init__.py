"""The few statements of memory that are too hot for the ORM."""

from apps.memory.sql.postings import index_words
from apps.memory.sql.recalling import COMMON, MOST, NEWEST, NEWEST_OF_DOMAIN, RECALL, Found, asking, find
from apps.memory.sql.subjects import (
    DROP_OLD_LOADS,
    ENVELOPE,
    EXPIRED,
    EXPIRED_ITEMS,
    EXPIRED_SESSIONS,
    REVISION,
    known,
    note_load,
    revision,
)
from apps.memory.sql.tallies import count_common_words, fold_tallies

__all__ = [
    "COMMON",
    "DROP_OLD_LOADS",
    "ENVELOPE",
    "EXPIRED",
    "EXPIRED_ITEMS",
    "EXPIRED_SESSIONS",
    "MOST",
    "NEWEST",
    "NEWEST_OF_DOMAIN",
    "RECALL",
    "REVISION",
    "Found",
    "asking",
    "count_common_words",
    "find",
    "fold_tallies",
    "index_words",
    "known",
    "note_load",
    "revision",
]
