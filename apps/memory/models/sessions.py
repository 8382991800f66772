"""The conversations that agents had."""

from typing import Final

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.expressions import RawSQL

from apps.memory.models.subjects import Subject
from apps.principals.models import Principal, TenantModel

# Of a place, which a passage has for its id, the last bits say which turn of its session it is, and the one before them is
# set in the places of what belongs to none: see Passage.
TURN_BITS: Final = 19
OUTSIDE: Final = 1 << TURN_BITS
SPAN_BITS: Final = TURN_BITS + 1
# A session has as many places, less a few: nothing outside is next to its last turn.
MOST_TURNS: Final = OUTSIDE - 16


class Session(TenantModel):
    """A conversation that an agent had, so that the next one can take up its thread; with a subject, or with nobody.

    `turns` counts what was stored of it turn by turn. One that is forgotten is the place where they were, and no more.
    Its id is drawn from the sequence of places, see Passage: what was remembered before it began stands before its turns.
    """

    id = models.BigIntegerField(
        primary_key=True,
        db_default=RawSQL(f"(nextval('memory_passage_id_seq') >> {SPAN_BITS})", ()),  # noqa: S611  # a constant
        editable=False,
    )
    principal = models.ForeignKey(Principal, on_delete=models.PROTECT, related_name="+", db_index=False)
    subject = models.ForeignKey(Subject, on_delete=models.SET_NULL, null=True, related_name="sessions", db_index=False)
    conversation_id = models.CharField(max_length=200)
    platform = models.CharField(max_length=50, blank=True)
    title = models.CharField(max_length=200, blank=True)
    summary = models.TextField(blank=True)
    topics = ArrayField(models.CharField(max_length=100), default=list)
    tone = models.CharField(max_length=100, blank=True)
    turns = models.PositiveIntegerField(db_default=0)
    is_forgotten = models.BooleanField(db_default=False)
    started_at = models.DateTimeField()
    last_active_at = models.DateTimeField()

    class Meta:
        constraints = [
            # Those of the next half are the places of what belongs to no session, see Passage.
            models.CheckConstraint(condition=Q(turns__lte=MOST_TURNS), name="memory_session_turns_have_places"),
            models.UniqueConstraint(
                fields=["tenant", "principal", "conversation_id"], name="memory_session_conversation_once"
            ),
        ]
        indexes = [
            # Serves sql.RECENT.
            models.Index(
                fields=["tenant", "principal", "-last_active_at", "-id"],
                name="memory_session_recent",
                condition=Q(is_forgotten=False),
            ),
            # Serves sql.RECENT: of each subject that may be known, however many others there are.
            models.Index(
                fields=["tenant", "principal", "subject", "-last_active_at", "-id"],
                name="memory_session_with",
                condition=Q(is_forgotten=False),
            ),
            # Serves sql.ENVELOPE and the removal of a subject.
            models.Index(
                fields=["subject", "-last_active_at", "-id"],
                name="memory_session_of_subject",
                condition=Q(subject__isnull=False),
            ),
            # Serves selectors.export(): the sessions themselves, and what was said in them.
            models.Index(fields=["subject", "-id"], name="memory_session_listed", condition=Q(subject__isnull=False)),
        ]

    def __str__(self) -> str:
        return self.title or self.conversation_id

    @property
    def scope(self) -> int:
        """Whom its turns are about: see Passage."""
        return self.subject_id or 0

    def place_of(self, turn: int) -> int:
        """Where a turn, the first of which is 0, stands in the index: see Passage."""
        return (self.pk << SPAN_BITS) + turn
