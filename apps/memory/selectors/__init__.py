"""Questions to what is remembered."""

from apps.memory.selectors.concepts import concept_named, concepts_named, concepts_of_type
from apps.memory.selectors.holdings import Holdings, holdings
from apps.memory.selectors.observations import observation_of
from apps.memory.selectors.recalling import Hit, recall
from apps.memory.selectors.sessions import Conversation, recent_sessions

__all__ = [
    "Conversation",
    "Hit",
    "Holdings",
    "concept_named",
    "concepts_named",
    "concepts_of_type",
    "holdings",
    "observation_of",
    "recall",
    "recent_sessions",
]
