"""The few statements of memory that are too hot for the ORM."""

from apps.memory.sql.postings import index_words
from apps.memory.sql.recalling import COMMON, MOST, NEWEST, NEWEST_OF_DOMAIN, RECALL, Found, asking, find
from apps.memory.sql.tallies import count_common_words, fold_tallies

__all__ = [
    "COMMON",
    "MOST",
    "NEWEST",
    "NEWEST_OF_DOMAIN",
    "RECALL",
    "Found",
    "asking",
    "count_common_words",
    "find",
    "fold_tallies",
    "index_words",
]
