"""What is remembered, by whom, how surely and on what evidence; and the index that recall reads."""

from apps.memory.models.concepts import Concept, ConceptName, Relationship
from apps.memory.models.observations import Observation
from apps.memory.models.passages import Passage, Posting, Tally
from apps.memory.models.patterns import Pattern, PatternRevision
from apps.memory.models.sessions import Session

__all__ = [
    "Concept",
    "ConceptName",
    "Observation",
    "Passage",
    "Pattern",
    "PatternRevision",
    "Posting",
    "Relationship",
    "Session",
    "Tally",
]
