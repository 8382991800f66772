"""What is remembered, by whom, how surely and on what evidence; and the index that recall reads."""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q

from apps.memory.references import concept_ref, observation_ref, pattern_ref
from apps.principals.models import Principal, TenantModel


def _sure(name: str) -> models.CheckConstraint:
    return models.CheckConstraint(condition=Q(confidence__gte=0, confidence__lte=1), name=name)


class Observation(TenantModel):
    """One statement as it was made. It is never rewritten: a newer statement supersedes it.

    `occurred_at` is when it was so, `recorded_at` when we learned it.
    """

    author = models.ForeignKey(Principal, on_delete=models.PROTECT, related_name="+", db_index=False)
    text = models.TextField()
    domain = models.CharField(max_length=100, blank=True)
    confidence = models.FloatField()
    evidence = models.JSONField(default=list)
    metadata = models.JSONField(default=dict)
    occurred_at = models.DateTimeField()
    recorded_at = models.DateTimeField()
    superseded_at = models.DateTimeField(null=True)
    superseded_by = models.ForeignKey("self", on_delete=models.PROTECT, null=True, related_name="supersedes")

    class Meta:
        constraints = [
            _sure("memory_observation_confidence_between_0_and_1"),
            models.CheckConstraint(
                condition=Q(superseded_at=None, superseded_by=None)
                | Q(superseded_at__isnull=False, superseded_by__isnull=False),
                name="memory_observation_superseded_by_a_statement",
            ),
            models.CheckConstraint(
                condition=~Q(superseded_by=F("id")), name="memory_observation_not_superseded_by_itself"
            ),
        ]

    def __str__(self) -> str:
        return self.ref

    @property
    def ref(self) -> str:
        return observation_ref(self.pk)


class Concept(TenantModel):
    """A thing that memories speak of, known by one name and any number of aliases.

    What it is found by are its names (see ConceptName). A concept that a relationship mentioned before anybody
    described it has an empty type.
    """

    author = models.ForeignKey(Principal, on_delete=models.PROTECT, related_name="+", db_index=False)
    key = models.CharField(max_length=200)
    name = models.CharField(max_length=200)
    type = models.CharField(max_length=50, blank=True)
    aliases = ArrayField(models.CharField(max_length=200), default=list)
    description = models.TextField(blank=True)
    metadata = models.JSONField(default=dict)
    recorded_at = models.DateTimeField()
    revised_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.name

    @property
    def ref(self) -> str:
        return concept_ref(self.key)


class ConceptName(TenantModel):
    """A name or alias of a concept, in the form that names are compared by; it stands for one concept only.

    A concept's own key is among its names, which makes the key unique too.
    """

    key = models.CharField(max_length=200)
    concept = models.ForeignKey(Concept, on_delete=models.CASCADE, related_name="names")

    class Meta:
        constraints = [
            # Serves selectors.concepts_named().
            models.UniqueConstraint(fields=["tenant", "key"], name="memory_conceptname_once"),
        ]

    def __str__(self) -> str:
        return self.key


class Relationship(TenantModel):
    """That one concept stands in a named relation to another."""

    author = models.ForeignKey(Principal, on_delete=models.PROTECT, related_name="+", db_index=False)
    source = models.ForeignKey(Concept, on_delete=models.CASCADE, related_name="outgoing", db_index=False)
    target = models.ForeignKey(Concept, on_delete=models.CASCADE, related_name="incoming")
    type = models.CharField(max_length=50)
    description = models.TextField(blank=True)
    recorded_at = models.DateTimeField()
    revised_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "source", "target", "type"], name="memory_relationship_once"),
        ]

    def __str__(self) -> str:
        return f"{self.source} {self.type} {self.target}"


class Pattern(TenantModel):
    """What was found to hold in many cases, as its latest revision has it."""

    author = models.ForeignKey(Principal, on_delete=models.PROTECT, related_name="+", db_index=False)
    category = models.CharField(max_length=100)
    name = models.CharField(max_length=200)
    text = models.TextField()
    confidence = models.FloatField()
    evidence = models.JSONField(default=list)
    revision = models.PositiveIntegerField()
    recorded_at = models.DateTimeField()
    revised_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "category", "name"], name="memory_pattern_name_once"),
            _sure("memory_pattern_confidence_between_0_and_1"),
        ]

    def __str__(self) -> str:
        return f"{self.category}: {self.name}"

    @property
    def ref(self) -> str:
        return pattern_ref(self.pk)


class PatternRevision(TenantModel):
    """A pattern as it read from one revision to the next; the newest equals the pattern's row."""

    author = models.ForeignKey(Principal, on_delete=models.PROTECT, related_name="+", db_index=False)
    pattern = models.ForeignKey(Pattern, on_delete=models.CASCADE, related_name="revisions", db_index=False)
    number = models.PositiveIntegerField()
    text = models.TextField()
    confidence = models.FloatField()
    evidence = models.JSONField(default=list)
    recorded_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "pattern", "number"], name="memory_patternrevision_number_once"),
            _sure("memory_patternrevision_confidence_between_0_and_1"),
        ]

    def __str__(self) -> str:
        return f"{self.pattern} (revision {self.number})"


class Session(TenantModel):
    """A conversation that an agent had, so that the next one can take up its thread."""

    principal = models.ForeignKey(Principal, on_delete=models.PROTECT, related_name="+", db_index=False)
    conversation_id = models.CharField(max_length=200)
    platform = models.CharField(max_length=50, blank=True)
    title = models.CharField(max_length=200, blank=True)
    summary = models.TextField(blank=True)
    topics = ArrayField(models.CharField(max_length=100), default=list)
    tone = models.CharField(max_length=100, blank=True)
    started_at = models.DateTimeField()
    last_active_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "principal", "conversation_id"], name="memory_session_conversation_once"
            ),
        ]
        indexes = [
            # Serves selectors.recent_sessions().
            models.Index(fields=["tenant", "principal", "-last_active_at"], name="memory_session_recent"),
        ]

    def __str__(self) -> str:
        return self.title or self.conversation_id


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
