"""Questions to what is remembered."""

from apps.memory.selectors.concepts import concept_named, concepts_named, concepts_of_type, concepts_told_of
from apps.memory.selectors.embedding import Embedding, embedding
from apps.memory.selectors.holdings import Holdings, holdings
from apps.memory.selectors.observations import observation_of, observations_known_to
from apps.memory.selectors.recalling import Hit, recall
from apps.memory.selectors.sessions import Conversation, recent_sessions
from apps.memory.selectors.subjects import (
    TURNS_AT_ONCE,
    Policy,
    Thing,
    dates_of,
    export,
    forgotten_among,
    has_said,
    is_forgotten,
    item_of,
    items,
    known_to,
    mark_of,
    policy,
    subject_of,
    turns,
    unknown,
    was_served,
)
from apps.memory.sql import LOOKED_AT

__all__ = [
    "LOOKED_AT",
    "TURNS_AT_ONCE",
    "Conversation",
    "Embedding",
    "Hit",
    "Holdings",
    "Policy",
    "Thing",
    "concept_named",
    "concepts_named",
    "concepts_of_type",
    "concepts_told_of",
    "dates_of",
    "embedding",
    "export",
    "forgotten_among",
    "has_said",
    "holdings",
    "is_forgotten",
    "item_of",
    "items",
    "known_to",
    "mark_of",
    "observation_of",
    "observations_known_to",
    "policy",
    "recall",
    "recent_sessions",
    "subject_of",
    "turns",
    "unknown",
    "was_served",
]
