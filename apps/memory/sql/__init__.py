"""The few statements of memory that are too hot for the ORM."""

from apps.memory.sql.postings import index_words
from apps.memory.sql.recalling import MOST, NEWEST, NEWEST_OF_DOMAIN, RECALL, Found, find
from apps.memory.sql.tallies import fold_tallies

__all__ = ["MOST", "NEWEST", "NEWEST_OF_DOMAIN", "RECALL", "Found", "find", "fold_tallies", "index_words"]
