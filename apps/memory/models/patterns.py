"""What was found to hold in many cases."""

from django.contrib.postgres.indexes import HashIndex
from django.db import models

from apps.memory.models.confidence import sure
from apps.memory.references import pattern_ref
from apps.principals.models import Principal, TenantModel


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
            sure("memory_pattern_confidence_between_0_and_1"),
        ]
        # Serves selectors.saying().
        indexes = [HashIndex(fields=["text"], name="memory_pattern_of_text")]

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
            # Serves selectors.memory_of().
            models.UniqueConstraint(fields=["tenant", "pattern", "number"], name="memory_patternrevision_number_once"),
            sure("memory_patternrevision_confidence_between_0_and_1"),
        ]
        indexes = [
            # Serves sql.MEMORY, a pattern as of before, and the removal of one.
            models.Index(fields=["pattern", "recorded_at", "number"], name="memory_patternrevision_from"),
        ]

    def __str__(self) -> str:
        return f"{self.pattern} (revision {self.number})"
