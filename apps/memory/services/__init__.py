"""Commands that write to memory. Every row says which principal wrote it."""

from apps.memory.services.concepts import add_relationship, retract_relationships, store_concept
from apps.memory.services.observations import store_observation
from apps.memory.services.patterns import update_pattern
from apps.memory.services.promoting import Promotion, Verdict, promote, set_promotion_policy
from apps.memory.services.sessions import record_session
from apps.memory.services.starting import HANDOFF, Awakening, bootstrap
from apps.memory.services.tallying import count_common_words, fold_tallies

__all__ = [
    "HANDOFF",
    "Awakening",
    "Promotion",
    "Verdict",
    "add_relationship",
    "bootstrap",
    "count_common_words",
    "fold_tallies",
    "promote",
    "record_session",
    "retract_relationships",
    "set_promotion_policy",
    "store_concept",
    "store_observation",
    "update_pattern",
]
