"""Questions to what is remembered."""

from apps.memory.selectors.concepts import (
    concept_named,
    concepts_named,
    concepts_of_type,
    concepts_told_of,
    relationships,
)
from apps.memory.selectors.embedding import Embedding, embedding
from apps.memory.selectors.holdings import Holdings, holdings
from apps.memory.selectors.observations import observation_of, observations_known_to
from apps.memory.selectors.promotions import promotion_policies
from apps.memory.selectors.reading import Earlier, Memory, memory_of
from apps.memory.selectors.recalling import Hit, recall
from apps.memory.selectors.sessions import Conversation, recent_sessions
from apps.memory.selectors.statements import saying
from apps.memory.selectors.subjects import (
    AT_ONCE,
    PARTS,
    Exported,
    Policy,
    dates_of,
    export,
    has_said,
    is_forgotten,
    item_of,
    items,
    known_to,
    mark_of,
    policy,
    settled_by,
    subject_of,
    subject_settled_by,
    unknown,
    was_served,
)
from apps.memory.sql import LOOKED_AT

__all__ = [
    "AT_ONCE",
    "LOOKED_AT",
    "PARTS",
    "Conversation",
    "Earlier",
    "Embedding",
    "Exported",
    "Hit",
    "Holdings",
    "Memory",
    "Policy",
    "concept_named",
    "concepts_named",
    "concepts_of_type",
    "concepts_told_of",
    "dates_of",
    "embedding",
    "export",
    "has_said",
    "holdings",
    "is_forgotten",
    "item_of",
    "items",
    "known_to",
    "mark_of",
    "memory_of",
    "observation_of",
    "observations_known_to",
    "policy",
    "promotion_policies",
    "recall",
    "recent_sessions",
    "relationships",
    "saying",
    "settled_by",
    "subject_of",
    "subject_settled_by",
    "unknown",
    "was_served",
]
