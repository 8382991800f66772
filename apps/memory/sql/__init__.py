"""The few statements of memory that are too hot for the ORM."""

from apps.memory.sql.finding import Found, asking, find
from apps.memory.sql.meaning import (
    LOOKED_AT,
    Meant,
    has_vectors,
    index_statements,
    keep_vectors,
    recall_by_meaning,
    unembedded,
    vectors_held,
)
from apps.memory.sql.postings import drop_passages, index_words, move_passages
from apps.memory.sql.recalling import COMMON, MOST, NEWEST, NEWEST_OF_DOMAIN, RECALL
from apps.memory.sql.subjects import (
    DROP_OLD_LOADS,
    ENVELOPE,
    EXPIRED,
    EXPIRED_ITEMS,
    EXPIRED_SESSIONS,
    READABLE,
    REVISION,
    Readable,
    drop_subject,
    known,
    note_load,
    readable,
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
    "LOOKED_AT",
    "MOST",
    "NEWEST",
    "NEWEST_OF_DOMAIN",
    "READABLE",
    "RECALL",
    "REVISION",
    "Found",
    "Meant",
    "Readable",
    "asking",
    "count_common_words",
    "drop_passages",
    "drop_subject",
    "find",
    "fold_tallies",
    "has_vectors",
    "index_statements",
    "index_words",
    "keep_vectors",
    "known",
    "move_passages",
    "note_load",
    "readable",
    "recall_by_meaning",
    "revision",
    "unembedded",
    "vectors_held",
]
