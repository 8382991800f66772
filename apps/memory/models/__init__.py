"""What is remembered, by whom, how surely and on what evidence; and the index that recall reads."""

from apps.memory.models.concepts import Concept, ConceptName, ConceptRevision, Relationship
from apps.memory.models.observations import Observation
from apps.memory.models.passages import COMMON, CommonWord, Passage, Posting, Tally, WordCount
from apps.memory.models.patterns import Pattern, PatternRevision
from apps.memory.models.promotions import PromotionPolicy
from apps.memory.models.sessions import MOST_TURNS, OUTSIDE, SPAN_BITS, TURN_BITS, Session
from apps.memory.models.subjects import (
    EnvelopeLoaded,
    Forgotten,
    Item,
    MemoryPolicy,
    Subject,
    SubjectQuerySet,
)
from apps.memory.models.vectors import Vector

__all__ = [
    "COMMON",
    "MOST_TURNS",
    "OUTSIDE",
    "SPAN_BITS",
    "TURN_BITS",
    "CommonWord",
    "Concept",
    "ConceptName",
    "ConceptRevision",
    "EnvelopeLoaded",
    "Forgotten",
    "Item",
    "MemoryPolicy",
    "Observation",
    "Passage",
    "Pattern",
    "PatternRevision",
    "Posting",
    "PromotionPolicy",
    "Relationship",
    "Session",
    "Subject",
    "SubjectQuerySet",
    "Tally",
    "Vector",
    "WordCount",
]
