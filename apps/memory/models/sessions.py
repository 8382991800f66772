"""The conversations that agents had."""

from django.contrib.postgres.fields import ArrayField
from django.db import models

from apps.principals.models import Principal, TenantModel


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
