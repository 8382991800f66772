"""What was observed, as it was said."""

from django.contrib.postgres.indexes import HashIndex
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Least

from apps.memory.models.confidence import sure
from apps.memory.models.sessions import Session
from apps.memory.references import observation_ref
from apps.principals.models import Principal, TenantModel


class Observation(TenantModel):
    """One statement as it was made. It is never rewritten: a newer statement supersedes it.

    `occurred_at` is when it was so, `recorded_at` when we learned it. What was said in a conversation belongs to a
    session, and keeps its turn there (see Passage).
    """

    author = models.ForeignKey(Principal, on_delete=models.PROTECT, related_name="+", db_index=False)
    session = models.ForeignKey(
        Session, on_delete=models.PROTECT, null=True, related_name="turns_said", db_index=False, editable=False
    )
    speaker = models.CharField(max_length=100, blank=True, db_default="")
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
            sure("memory_observation_confidence_between_0_and_1"),
            models.CheckConstraint(
                condition=Q(superseded_at=None, superseded_by=None)
                | Q(superseded_at__isnull=False, superseded_by__isnull=False),
                name="memory_observation_superseded_by_a_statement",
            ),
            models.CheckConstraint(
                condition=~Q(superseded_by=F("id")), name="memory_observation_not_superseded_by_itself"
            ),
            models.CheckConstraint(
                condition=Q(superseded_at=None) | Q(superseded_at__gte=F("recorded_at")),
                name="memory_observation_known_before_superseded",
            ),
        ]
        indexes = [
            # Serves whatever goes through the turns of a conversation, as the export, and the removal of a session.
            models.Index(
                fields=["session", "id"], name="memory_observation_of_session", condition=Q(session__isnull=False)
            ),
            # Serves sql.EXPIRED_SESSIONS, sql.EXPIRED_TURNS and sql.NEXT_EXPIRY: turns by when they were said.
            models.Index(
                "session",
                Least("occurred_at", "recorded_at"),
                name="memory_observation_said",
                condition=Q(session__isnull=False) & ~Q(text=""),
            ),
            # Serves selectors.saying().
            HashIndex(
                fields=["text"], name="memory_observation_of_text", condition=Q(session=None, superseded_at=None)
            ),
        ]

    def __str__(self) -> str:
        return self.ref

    @property
    def scope(self) -> int:
        """Whom it is about: see Passage."""
        return 0 if self.session is None else self.session.scope

    @property
    def ref(self) -> str:
        return observation_ref(self.pk)
