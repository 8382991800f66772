"""The index that recall reads, and how much there is in it."""

from django.db import models
from django.db.models import Q

from apps.memory.models.concepts import Concept
from apps.memory.models.observations import Observation
from apps.memory.models.patterns import Pattern
from apps.principals.models import TenantModel


class Passage(TenantModel):
    """The part of a memory that recall can find: exactly one of observation, pattern and concept.

    `length` counts its words as the index does, without stop words.
    """

    observation = models.OneToOneField(Observation, on_delete=models.CASCADE, null=True, related_name="passage")
    pattern = models.OneToOneField(Pattern, on_delete=models.CASCADE, null=True, related_name="passage")
    concept = models.OneToOneField(Concept, on_delete=models.CASCADE, null=True, related_name="passage")
    domain = models.CharField(max_length=100, blank=True)
    length = models.PositiveIntegerField(default=0)
    recorded_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(observation__isnull=False, pattern=None, concept=None)
                | Q(observation=None, pattern__isnull=False, concept=None)
                | Q(observation=None, pattern=None, concept__isnull=False),
                name="memory_passage_of_one_memory",
            ),
        ]
        indexes = [
            # Serves sql.NEWEST.
            models.Index(fields=["tenant", "-recorded_at", "-id"], name="memory_passage_newest"),
            # Serves sql.NEWEST_OF_DOMAIN.
            models.Index(fields=["tenant", "domain", "-recorded_at", "-id"], name="memory_passage_domain"),
        ]

    def __str__(self) -> str:
        return f"passage {self.pk}"


class Posting(TenantModel):
    """That a word, in its stemmed form, stands in a passage, and how often; with the passage's length to score by."""

    term = models.TextField()
    passage = models.ForeignKey(Passage, on_delete=models.CASCADE, related_name="postings")
    frequency = models.PositiveSmallIntegerField()
    length = models.PositiveIntegerField()

    class Meta:
        constraints = [
            # Serves sql.RECALL: a word's passages, their number and their scores, from the index alone.
            models.UniqueConstraint(
                fields=["tenant", "term", "passage"], include=["frequency", "length"], name="memory_posting_once"
            ),
        ]

    def __str__(self) -> str:
        return self.term


class Tally(TenantModel):
    """How much a tenant remembers: the sum of its rows.

    Each writer appends the difference that it makes, since a counter would make all writers of a tenant wait for
    each other; services.fold_tallies() makes one row of many. Superseded observations are passages, but are no
    longer counted as observations.
    """

    observations = models.BigIntegerField()
    patterns = models.BigIntegerField()
    concepts = models.BigIntegerField()
    passages = models.BigIntegerField()
    words = models.BigIntegerField()

    class Meta:
        indexes = [
            # Serves selectors.holdings() and sql.RECALL, from the index alone.
            models.Index(
                fields=["tenant"],
                include=["observations", "patterns", "concepts", "passages", "words"],
                name="memory_tally_of_tenant",
            ),
        ]

    def __str__(self) -> str:
        return f"tally {self.pk}"
