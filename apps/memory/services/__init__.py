"""Commands that write to memory. Every row says which principal wrote it."""

from apps.memory.services.concepts import MOST_ALIASES, add_relationship, retract_relationships, store_concept
from apps.memory.services.embedding import asks_what_is_meant, embed_memories, meaning_of
from apps.memory.services.envelopes import get_memory_envelope
from apps.memory.services.forgetting import (
    Erasure,
    forget,
    forget_concepts,
    forget_expired,
    forget_items,
    forget_observations,
    forget_patterns,
    forget_sessions,
    revise_subjects,
)
from apps.memory.services.items import ItemDraft, Outcome, Remembered, remember
from apps.memory.services.observations import store_observation
from apps.memory.services.patterns import update_pattern
from apps.memory.services.promoting import (
    TRACE,
    Promotion,
    Verdict,
    permit_knowledge,
    permit_observation,
    promote,
    set_promotion_policy,
)
from apps.memory.services.sessions import record_session
from apps.memory.services.starting import HANDOFF, Awakening, bootstrap
from apps.memory.services.subjects import (
    MOST_PREFERENCES,
    SubjectChange,
    add_subject,
    set_memory_policy,
    update_subject,
)
from apps.memory.services.tallying import count_common_words, fold_tallies
from apps.memory.sql import Meant

__all__ = [
    "HANDOFF",
    "MOST_ALIASES",
    "MOST_PREFERENCES",
    "TRACE",
    "Awakening",
    "Erasure",
    "ItemDraft",
    "Meant",
    "Outcome",
    "Promotion",
    "Remembered",
    "SubjectChange",
    "Verdict",
    "add_relationship",
    "add_subject",
    "asks_what_is_meant",
    "bootstrap",
    "count_common_words",
    "embed_memories",
    "fold_tallies",
    "forget",
    "forget_concepts",
    "forget_expired",
    "forget_items",
    "forget_observations",
    "forget_patterns",
    "forget_sessions",
    "get_memory_envelope",
    "meaning_of",
    "permit_knowledge",
    "permit_observation",
    "promote",
    "record_session",
    "remember",
    "retract_relationships",
    "revise_subjects",
    "set_memory_policy",
    "set_promotion_policy",
    "store_concept",
    "store_observation",
    "update_pattern",
    "update_subject",
]
