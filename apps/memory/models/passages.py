"""The index that recall reads, and how much there is in it."""

from typing import Final

from django.contrib.postgres.search import SearchVectorField
from django.db import models
from django.db.models import Q

from apps.memory.models.concepts import Concept
from apps.memory.models.observations import Observation
from apps.memory.models.patterns import Pattern
from apps.memory.models.subjects import Item
from apps.principals.models import TenantModel

# A word is counted up to here; of those that stand in more passages a tick keeps the count (see CommonWord).
COMMON: Final = 1_000


class Passage(TenantModel):
    """The part of a memory that recall can find: exactly one of observation, pattern, concept, and item.

    Its id is its place: turns of a session have consecutive ones from `session << SPAN_BITS` on, and anything else has one
    that is next to nobody's (the sequence goes by steps of `1 << SPAN_BITS`, from the middle of such a span on). Sessions draw
    theirs from the same sequence, so that places go by when something, or the conversation that it was said in, began.
    Places of the same session are equal but for their last `TURN_BITS`. `scope` is the subject that it is about, 0 for none: items
    have theirs, and turns of a conversation with a subject that one's.
    `words` are those of its text, `length` counts them without stop words. `embedder` is the one that has been told of
    these words: its vector is what they mean.
    """

    observation = models.OneToOneField(Observation, on_delete=models.CASCADE, null=True, related_name="passage")
    pattern = models.OneToOneField(Pattern, on_delete=models.CASCADE, null=True, related_name="passage")
    concept = models.OneToOneField(Concept, on_delete=models.CASCADE, null=True, related_name="passage")
    item = models.OneToOneField(Item, on_delete=models.CASCADE, null=True, related_name="passage")
    scope = models.BigIntegerField(db_default=0)
    domain = models.CharField(max_length=100, blank=True)
    words = SearchVectorField(db_default="")
    length = models.PositiveIntegerField(default=0)
    recorded_at = models.DateTimeField()
    embedder = models.IntegerField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(observation__isnull=False, pattern=None, concept=None, item=None)
                | Q(observation=None, pattern__isnull=False, concept=None, item=None)
                | Q(observation=None, pattern=None, concept__isnull=False, item=None)
                | Q(observation=None, pattern=None, concept=None, item__isnull=False),
                name="memory_passage_of_one_memory",
            ),
        ]
        indexes = [
            # Serves sql.NEWEST.
            models.Index(fields=["tenant", "scope", "-recorded_at", "-id"], name="memory_passage_newest"),
            # Serves sql.NEWEST_OF_DOMAIN.
            models.Index(fields=["tenant", "scope", "domain", "-recorded_at", "-id"], name="memory_passage_domain"),
            # Serves sql.unembedded().
            models.Index(fields=["embedder", "id"], name="memory_passage_embedded"),
        ]

    def __str__(self) -> str:
        return f"passage {self.pk}"


class Posting(TenantModel):
    """That a word, in its stemmed form, stands in a passage, and how often; with the passage's length to score by.

    A word of its context is who said it, or when: it may stand in the text too, or not (a frequency of 0). So has a
    mark of what its metadata has (see the function memory_marks), which begins with a space as no word does. `superseded`
    says that this memory stands no longer: another stands in its place, or, of an item, its time was over when it was stored.
    """

    scope = models.BigIntegerField(db_default=0)
    term = models.TextField()
    passage = models.ForeignKey(Passage, on_delete=models.CASCADE, related_name="postings")
    frequency = models.PositiveSmallIntegerField()
    length = models.PositiveIntegerField()
    of_context = models.BooleanField(db_default=False)
    superseded = models.BooleanField(db_default=False)

    class Meta:
        constraints = [
            # Serves sql.RECALL: a word's passages, their number and their scores, from the index alone.
            models.UniqueConstraint(
                fields=["tenant", "scope", "term", "passage"],
                include=["frequency", "length", "of_context", "superseded"],
                name="memory_posting_once",
            ),
        ]

    def __str__(self) -> str:
        return self.term


class CommonWord(TenantModel):
    """In how many passages a word stands that stands in too many to count them at each question; a tick counts them."""

    scope = models.BigIntegerField()
    term = models.TextField()
    passages = models.BigIntegerField()

    class Meta:
        constraints = [
            # Serves sql.RECALL, from the index alone.
            models.UniqueConstraint(
                fields=["tenant", "scope", "term"], include=["passages"], name="memory_commonword_once"
            ),
        ]
        indexes = [
            # Serves sql.drop_passages() and sql.drop_subject().
            models.Index(fields=["tenant", "term"], name="memory_commonword_of_term"),
        ]

    def __str__(self) -> str:
        return self.term


class WordCount(TenantModel):
    """How many passages a tenant had in a scope when its common words were counted last."""

    scope = models.BigIntegerField()
    passages = models.BigIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "scope"], name="memory_wordcount_once"),
        ]

    def __str__(self) -> str:
        return f"{self.passages}"


class Tally(TenantModel):
    """How much a tenant remembers in a scope: the sum of its rows.

    Each writer appends the difference that it makes, since a counter would make all writers of a tenant wait for
    each other; services.fold_tallies() makes one row of many. Superseded observations are passages, but are no
    longer counted as observations.
    """

    scope = models.BigIntegerField(db_default=0)
    observations = models.BigIntegerField()
    patterns = models.BigIntegerField()
    concepts = models.BigIntegerField()
    passages = models.BigIntegerField()
    words = models.BigIntegerField()
    folded = models.BooleanField(db_default=False)
    """Whether it is a sum of others, not what a writer has appended."""

    class Meta:
        verbose_name_plural = "tallies"
        indexes = [
            # Serves sql.fold_tallies().
            models.Index(fields=["tenant", "scope"], condition=Q(folded=False), name="memory_tally_fresh"),
            # Serves sql.count_common_words().
            models.Index(fields=["tenant", "scope"], condition=Q(passages__gt=COMMON), name="memory_tally_large"),
            # Serves sql.HOLDINGS and sql.RECALL, from the index alone.
            models.Index(
                fields=["tenant", "scope"],
                include=["observations", "patterns", "concepts", "passages", "words"],
                name="memory_tally_of_tenant",
            ),
        ]

    def __str__(self) -> str:
        return f"tally {self.pk}"
