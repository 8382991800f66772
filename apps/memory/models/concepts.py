"""The things that memories speak of, and how they stand to each other."""

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import HashIndex
from django.db import models
from django.db.models import Q

from apps.memory.references import concept_ref
from apps.principals.models import Principal, TenantModel


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

    class Meta:
        indexes = [
            # Serves selectors.saying().
            HashIndex(fields=["description"], name="memory_concept_of_description", condition=~Q(description="")),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def ref(self) -> str:
        return concept_ref(self.key)


class ConceptRevision(TenantModel):
    """How a concept was described until it was described otherwise, at `superseded_at`.

    One whose words are forgotten says only that nobody knows any more how it read.
    """

    author = models.ForeignKey(Principal, on_delete=models.PROTECT, related_name="+", db_index=False)
    concept = models.ForeignKey(Concept, on_delete=models.CASCADE, related_name="revisions", db_index=False)
    type = models.CharField(max_length=50, blank=True)
    aliases = ArrayField(models.CharField(max_length=200), default=list)
    description = models.TextField(blank=True)
    metadata = models.JSONField(default=dict)
    recorded_at = models.DateTimeField()
    superseded_at = models.DateTimeField()
    is_forgotten = models.BooleanField(db_default=False)

    class Meta:
        indexes = [
            # Serves sql.MEMORY, selectors.memory_of() and the removal of a concept.
            models.Index(fields=["concept", "superseded_at", "id"], name="memory_conceptrevision_until"),
        ]

    def __str__(self) -> str:
        return f"{self.concept} until {self.superseded_at:%Y-%m-%d}"


class ConceptName(TenantModel):
    """A name or alias of a concept, in the form that names are compared by; it stands for one concept only.

    A concept's own key is among its names, which makes the key unique too.
    """

    key = models.CharField(max_length=200)
    concept = models.ForeignKey(Concept, on_delete=models.CASCADE, related_name="names")

    class Meta:
        constraints = [
            # Serves selectors.concepts_named() and memory_of().
            models.UniqueConstraint(fields=["tenant", "key"], name="memory_conceptname_once"),
        ]

    def __str__(self) -> str:
        return self.key


class Relationship(TenantModel):
    """That one concept stands in a named relation to another."""

    author = models.ForeignKey(Principal, on_delete=models.PROTECT, related_name="+", db_index=False)
    source = models.ForeignKey(Concept, on_delete=models.CASCADE, related_name="outgoing", db_index=False)
    target = models.ForeignKey(Concept, on_delete=models.CASCADE, related_name="incoming", db_index=False)
    type = models.CharField(max_length=50)
    description = models.TextField(blank=True)
    recorded_at = models.DateTimeField()
    revised_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "source", "target", "type"], name="memory_relationship_once"),
        ]
        indexes = [
            # Serve selectors.relationships(), narrowed or not; the first two also the removal of a concept.
            models.Index(fields=["source", "-id"], name="memory_relationship_from"),
            models.Index(fields=["target", "-id"], name="memory_relationship_to"),
            models.Index(fields=["tenant", "type", "-id"], name="memory_relationship_of_type"),
            models.Index(fields=["tenant", "-id"], name="memory_relationship_newest"),
        ]

    def __str__(self) -> str:
        return f"{self.source} {self.type} {self.target}"
