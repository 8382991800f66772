"""Operations on memory."""

from apps.memory.tools import (
    concepts,
    envelopes,
    forgetting,
    items,
    observations,
    patterns,
    promotions,
    reading,
    recalling,
    sessions,
    starting,
    subjects,
)

__all__ = [
    "concepts",
    "envelopes",
    "forgetting",
    "items",
    "observations",
    "patterns",
    "promotions",
    "reading",
    "recalling",
    "sessions",
    "starting",
    "subjects",
]
