"""The tables of memory: memories and their revisions, concepts' names and relations, sessions, subjects, the search index."""

from datetime import datetime
from typing import Any, Final, Self

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import HashIndex
from django.contrib.postgres.search import SearchVectorField
from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Exists, F, OuterRef, Q
from django.db.models.expressions import RawSQL
from django.db.models.functions import Coalesce, Least

from apps.memory.states import ItemType, Kind
from apps.principals.models import Principal, TenantModel

# Each memory has a place: a number from one sequence. The last bits of the place of a message are its number within its
# session, so that the messages of a session have consecutive places. The bit before them is set in the places of all other
# memories, which have no neighbours: the sequence goes by steps of `1 << SPAN_BITS`, from the middle of such a span on.
MESSAGE_BITS: Final = 19
OUTSIDE: Final = 1 << MESSAGE_BITS
SPAN_BITS: Final = MESSAGE_BITS + 1
# A few places stay free, so that no other memory is next to a session's last message.
MOST_MESSAGES: Final = OUTSIDE - 16
# Terms of more memories than this are counted by a job, and not at each question: see TermFrequency.
COMMON: Final = 1_000


def _author(*, null: bool = False) -> Any:
    return models.ForeignKey(Principal, on_delete=models.PROTECT, null=null, related_name="+", db_index=False)


class SubjectQuerySet(models.QuerySet["Subject"]):
    def shared_with(self, name: str) -> Self:
        """Those that this principal may read: by their own list or, where they have none, by their tenant's."""
        return self.filter(_shared_with(name))

    def shared_or_added_by(self, name: str, *, principal_id: int) -> Self:
        return self.filter(_shared_with(name) | Q(added_by=principal_id))


def _shared_with(name: str) -> Q:
    closed = MemoryPolicy.objects.filter(tenant_id=OuterRef("tenant_id"), share_with__isnull=False)
    closed = closed.exclude(share_with__contains=[name])
    return Q(share_with__contains=[name]) | Q(~Exists(closed), share_with=None)


class Subject(TenantModel):
    """A person or thing that memories are about, and the rules for these memories.

    `rev` grows in every transaction that changes the subject's envelope; every such writer locks the row. `share_with`
    names the principals that may read it: null is the tenant's default, empty is nobody. No memory of it is due for
    deletion (`delete_after_days`) before `expires_at`; null: never. `author` changed it last.
    """

    key = models.CharField(max_length=200)
    display_name = models.CharField(max_length=200, blank=True)
    learning_level = models.CharField(max_length=50, blank=True)
    domains = ArrayField(models.CharField(max_length=100), default=list)
    preferences = models.JSONField(default=dict)
    memory_enabled = models.BooleanField(default=True)
    learn_patterns = models.BooleanField(default=True)
    share_with = ArrayField(models.CharField(max_length=50), null=True)
    anonymize_dates = models.BooleanField(default=False)
    delete_after_days = models.PositiveIntegerField(null=True)
    expires_at = models.DateTimeField(null=True)
    added_by = _author(null=True)
    author = _author(null=True)
    rev = models.BigIntegerField(default=1)
    created_at = models.DateTimeField()
    revised_at = models.DateTimeField()

    objects = SubjectQuerySet.as_manager()

    class Meta:
        constraints = [
            # Serves selectors.recall() and sql.ENVELOPE.
            models.UniqueConstraint(fields=["tenant", "key"], name="memory_subject_key_once"),
            models.CheckConstraint(condition=Q(rev__gte=1), name="memory_subject_rev_counts_from_1"),
            models.CheckConstraint(
                condition=Q(expires_at=None) | Q(delete_after_days__isnull=False),
                name="memory_subject_that_keeps_all_never_expires",
            ),
        ]
        indexes = [
            # Serves services.forget_expired().
            models.Index(fields=["expires_at"], name="memory_subject_expiring", condition=Q(expires_at__isnull=False)),
        ]

    def __str__(self) -> str:
        return self.key


class MemoryPolicy(TenantModel):
    """A tenant's defaults for its subjects; a tenant without a row has the built-in ones.

    An item of each type stays in envelopes for this number of whole days after it was said. `share_with` is for subjects that
    have no list of their own; null is everybody in the tenant.
    """

    fact_days = models.PositiveIntegerField()
    pattern_days = models.PositiveIntegerField()
    narrative_days = models.PositiveIntegerField()
    share_with = ArrayField(models.CharField(max_length=50), null=True)
    author = _author(null=True)
    revised_at = models.DateTimeField()

    class Meta:
        verbose_name_plural = "memory policies"
        constraints = [
            models.UniqueConstraint(fields=["tenant"], name="memory_memorypolicy_once"),
        ]


class PromotionPolicy(TenantModel):
    """A DeleGate may write knowledge of these domains, from this confidence on; without a policy it may write none."""

    delegate = models.ForeignKey(Principal, on_delete=models.PROTECT, related_name="+", db_index=False)
    domains = ArrayField(models.CharField(max_length=100))
    confidence_threshold = models.FloatField()
    requires_novel = models.BooleanField()
    author = _author()
    revised_at = models.DateTimeField()

    class Meta:
        verbose_name_plural = "promotion policies"
        constraints = [
            models.UniqueConstraint(fields=["tenant", "delegate"], name="memory_promotionpolicy_once"),
        ]

    def __str__(self) -> str:
        return f"{self.delegate}: {', '.join(self.domains)}"


class EnvelopeLoaded(TenantModel):
    """ENVELOPE_LOADED: a viewer was given an envelope. It holds a keyed digest of the content, never the content."""

    subject = models.ForeignKey(Subject, on_delete=models.CASCADE, related_name="loads", db_index=False)
    viewer = models.ForeignKey(Principal, on_delete=models.PROTECT, related_name="+", db_index=False)
    rev = models.BigIntegerField()
    digest = models.BinaryField(max_length=32)
    loaded_at = models.DateTimeField()

    class Meta:
        verbose_name_plural = "envelopes loaded"
        indexes = [
            # Serves selectors.export() and the removal of a subject.
            models.Index(fields=["subject", "-id"], name="memory_envelopeloaded_listed"),
            # Serves the removal of old records.
            models.Index(fields=["loaded_at"], name="memory_envelopeloaded_old"),
        ]


class Session(TenantModel):
    """A conversation that an agent had, with a subject or with nobody. `message_count` counts the messages stored of it.

    Its id is drawn from the sequence of places (see MESSAGE_BITS): what was stored before it began has lower places.
    """

    id = models.BigIntegerField(
        primary_key=True,
        db_default=RawSQL(f"(nextval('memory_place') >> {SPAN_BITS})", ()),  # noqa: S611  # a constant
        editable=False,
    )
    principal = models.ForeignKey(Principal, on_delete=models.PROTECT, related_name="+", db_index=False)
    subject = models.ForeignKey(Subject, on_delete=models.CASCADE, null=True, related_name="sessions", db_index=False)
    conversation_id = models.CharField(max_length=200)
    platform = models.CharField(max_length=50, blank=True)
    title = models.CharField(max_length=200, blank=True)
    summary = models.TextField(blank=True)
    topics = ArrayField(models.CharField(max_length=100), default=list)
    tone = models.CharField(max_length=100, blank=True)
    message_count = models.PositiveIntegerField(db_default=0)
    started_at = models.DateTimeField()
    last_active_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(message_count__lte=MOST_MESSAGES), name="memory_session_messages_have_places"
            ),
            models.UniqueConstraint(
                fields=["tenant", "principal", "conversation_id"], name="memory_session_conversation_once"
            ),
        ]
        indexes = [
            # Serves sql.RECENT.
            models.Index(fields=["tenant", "principal", "-last_active_at", "-id"], name="memory_session_recent"),
            # Serves sql.ENVELOPE and the removal of a subject.
            models.Index(
                fields=["subject", "-last_active_at", "-id"],
                name="memory_session_of_subject",
                condition=Q(subject__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return self.title or self.conversation_id

    def place_of(self, message: int) -> int:
        """The place of a message; the first message has the number 0."""
        return (self.pk << SPAN_BITS) + message


class MemoryQuerySet(models.QuerySet["Memory"]):
    def of_kind(self, kind: Kind) -> Self:
        return self.filter(kind=kind)

    def valid_between(self, begin: datetime, end: datetime) -> Self:
        """Items that are true at any time from a moment up to another."""
        return self.filter(Q(valid_to=None) | Q(valid_to__gt=begin), valid_from__lt=end)


class Memory(TenantModel):
    """One memory: an observation, a pattern, a concept, or an item of a subject. Fields of other kinds are null or empty.

    Observations and items are never rewritten: a newer one supersedes the older at `superseded_at`. Patterns and concepts
    are revised: their earlier readings are Revisions. `domain` is the category of a pattern, the type of a concept or of
    an item. `occurred_at` is when it happened, of an item when somebody last said it; `recorded_at` is when it was stored.
    An observation of a session is a message of it, and about the session's subject.

    An item is true from `valid_from` to `valid_to`; null is open. `stated`: the subject said so itself. `text_digest` is
    equal for texts that count as the same, `slot_key` for such slots. An item whose successor was forgotten stays
    superseded.

    `place`, `scope`, `words`, `length` and `embedder` belong to the search index (apps/memory/search.py). `scope` is the
    subject, or 0. `words` are those of the text, `length` counts them without stop words, `embedder` is the model whose
    vector is current.
    """

    place = models.BigIntegerField(unique=True, db_default=RawSQL("nextval('memory_place')", ()), editable=False)
    kind = models.CharField(max_length=11, choices=Kind)
    author = _author()
    session = models.ForeignKey(Session, on_delete=models.CASCADE, null=True, related_name="messages", db_index=False)
    subject = models.ForeignKey(Subject, on_delete=models.CASCADE, null=True, related_name="memories", db_index=False)
    scope = models.GeneratedField(
        expression=Coalesce("subject_id", 0), output_field=models.BigIntegerField(), db_persist=True
    )
    key = models.CharField(max_length=200, null=True)
    """Of a concept: the normalized form of its name."""
    name = models.CharField(max_length=200, blank=True, db_default="")
    domain = models.CharField(max_length=100, blank=True, db_default="")
    text = models.TextField(blank=True)
    aliases = ArrayField(models.CharField(max_length=200), default=list, db_default=RawSQL("'{}'::varchar[]", ()))
    speaker = models.CharField(max_length=100, blank=True, db_default="")
    source = models.CharField(max_length=200, blank=True, db_default="")
    confidence = models.FloatField(null=True)
    evidence = models.JSONField(default=list)
    metadata = models.JSONField(default=dict)
    revision = models.PositiveIntegerField(null=True)
    """Of a pattern, from 1 on."""
    occurred_at = models.DateTimeField(null=True)
    recorded_at = models.DateTimeField()
    revised_at = models.DateTimeField(null=True)
    text_digest = models.BinaryField(max_length=32, null=True)
    slot = models.CharField(max_length=200, null=True)
    slot_key = models.CharField(max_length=200, null=True)
    stated = models.BooleanField(default=False, db_default=False)
    valid_from = models.DateTimeField(null=True)
    valid_to = models.DateTimeField(null=True)
    superseded_at = models.DateTimeField(null=True)
    superseded_by = models.ForeignKey(
        "self", on_delete=models.SET_NULL, null=True, related_name="supersedes", db_index=False
    )
    words = SearchVectorField(db_default="", editable=False)
    length = models.PositiveIntegerField(db_default=0, editable=False)
    embedder = models.IntegerField(null=True, editable=False)

    objects = MemoryQuerySet.as_manager()

    class Meta:
        verbose_name_plural = "memories"
        constraints = [
            models.CheckConstraint(condition=Q(kind__in=Kind.values), name="memory_memory_kind_known"),
            models.CheckConstraint(
                condition=Q(confidence__gte=0, confidence__lte=1), name="memory_memory_confidence_between_0_and_1"
            ),
            models.CheckConstraint(
                condition=Q(superseded_by=None) | Q(superseded_at__isnull=False),
                name="memory_memory_superseded_at_a_time",
            ),
            models.CheckConstraint(condition=~Q(superseded_by=F("id")), name="memory_memory_not_superseded_by_itself"),
            models.CheckConstraint(
                condition=Q(superseded_at=None) | Q(superseded_at__gte=F("recorded_at")),
                name="memory_memory_known_before_superseded",
            ),
            models.CheckConstraint(
                condition=(~Q(kind=Kind.CONCEPT) | Q(key__isnull=False))
                & (~Q(kind=Kind.PATTERN) | Q(confidence__isnull=False, revision__isnull=False))
                & (~Q(kind=Kind.OBSERVATION) | Q(confidence__isnull=False, occurred_at__isnull=False))
                & (Q(session=None) | Q(kind=Kind.OBSERVATION))
                & (
                    Q(text_digest=None, slot=None, valid_from=None, valid_to=None) & ~Q(kind=Kind.ITEM)
                    | Q(
                        kind=Kind.ITEM,
                        domain__in=ItemType.values,
                        subject__isnull=False,
                        confidence__isnull=False,
                        text_digest__isnull=False,
                        valid_from__isnull=False,
                        occurred_at__isnull=False,
                    )
                ),
                name="memory_memory_has_the_fields_of_its_kind",
            ),
            models.CheckConstraint(
                condition=Q(valid_to=None) | Q(valid_to__gt=F("valid_from")), name="memory_memory_valid_for_a_while"
            ),
            models.CheckConstraint(
                condition=Q(slot=None, slot_key=None)
                | (Q(slot__isnull=False, slot_key__isnull=False) & ~Q(slot="") & ~Q(slot_key="")),
                name="memory_memory_slot_has_a_name_and_a_key",
            ),
            models.UniqueConstraint(
                fields=["tenant", "domain", "name"], name="memory_memory_pattern_once", condition=Q(kind=Kind.PATTERN)
            ),
            # A slot has one item without an end, and so has a text.
            models.UniqueConstraint(
                fields=["tenant", "subject", "slot_key"],
                name="memory_memory_slot_holds_one",
                condition=Q(superseded_at=None, valid_to=None, slot_key__isnull=False),
            ),
            models.UniqueConstraint(
                fields=["tenant", "subject", "domain", "text_digest", "slot_key"],
                name="memory_memory_item_said_once",
                condition=Q(kind=Kind.ITEM, superseded_at=None, valid_to=None),
                nulls_distinct=False,
            ),
        ]
        indexes = [
            # Serves search.NEWEST.
            models.Index(fields=["tenant", "scope", "-recorded_at", "-place"], name="memory_memory_newest"),
            # Serves search.NEWEST_OF_DOMAIN.
            models.Index(fields=["tenant", "scope", "domain", "-recorded_at", "-place"], name="memory_memory_domain"),
            # Serves vectors.unembedded().
            models.Index(fields=["embedder", "place"], name="memory_memory_embedded"),
            # Serves selectors.saying(), and selectors.concepts_of_type() by its kind.
            HashIndex(
                fields=["text"],
                name="memory_memory_of_text",
                condition=Q(subject=None, session=None, superseded_at=None),
            ),
            # Serves sql.ENVELOPE: the newest of each type that have no end, and those that have one.
            models.Index(
                fields=["tenant", "subject", "domain", "-occurred_at", "-id"],
                name="memory_memory_current",
                condition=Q(kind=Kind.ITEM, superseded_at=None, valid_to=None),
            ),
            models.Index(
                fields=["subject", "domain", "valid_to"],
                name="memory_memory_ending",
                condition=Q(kind=Kind.ITEM, superseded_at=None, valid_to__isnull=False),
            ),
            # Serves services.remember(): items of the same text.
            models.Index(
                fields=["subject", "text_digest"], name="memory_memory_saying", condition=Q(text_digest__isnull=False)
            ),
            # Serves selectors.items(), and services.remember() by a slot: the current ones, however many were superseded.
            models.Index(
                fields=["subject", "-id"],
                name="memory_memory_standing",
                condition=Q(kind=Kind.ITEM, superseded_at=None),
            ),
            # Serves selectors.items() with `known_at`, the export and the removal of a subject.
            models.Index(
                fields=["subject", "kind", "-id"], name="memory_memory_listed", condition=Q(subject__isnull=False)
            ),
            # Serves services.forget_expired().
            models.Index(
                "subject",
                Least("occurred_at", "recorded_at"),
                name="memory_memory_said",
                condition=Q(subject__isnull=False),
            ),
            # Serve selectors.memory_of() and the removal of a memory or a session.
            models.Index(
                fields=["superseded_by", "-id"], name="memory_memory_by_newer", condition=Q(superseded_by__isnull=False)
            ),
            models.Index(fields=["session"], name="memory_memory_of_session", condition=Q(session__isnull=False)),
        ]

    def __str__(self) -> str:
        return self.name or self.ref

    @property
    def ref(self) -> str:
        """The reference on the wire: `observation:123`, `concept:python`."""
        return f"{self.kind}:{self.key if self.kind == Kind.CONCEPT else self.pk}"

    @property
    def superseded_by_ref(self) -> str | None:
        """The reference of the memory that superseded it, which is of the same kind."""
        return None if self.superseded_by_id is None else f"{self.kind}:{self.superseded_by_id}"


class Revision(TenantModel):
    """An earlier reading of a pattern or a concept, from `recorded_at` until `superseded_at`."""

    author = _author()
    memory = models.ForeignKey(Memory, on_delete=models.CASCADE, related_name="revisions", db_index=False)
    number = models.PositiveIntegerField(null=True)
    domain = models.CharField(max_length=100, blank=True)
    text = models.TextField(blank=True)
    aliases = ArrayField(models.CharField(max_length=200), default=list)
    confidence = models.FloatField(null=True)
    evidence = models.JSONField(default=list)
    metadata = models.JSONField(default=dict)
    recorded_at = models.DateTimeField()
    superseded_at = models.DateTimeField()

    class Meta:
        indexes = [
            # Serves search.MEMORY, selectors.memory_of() and the removal of a memory.
            models.Index(fields=["memory", "superseded_at", "id"], name="memory_revision_until"),
        ]


class ConceptName(TenantModel):
    """The normalized form of a name or alias. It names one concept only. The concept's key is among its names."""

    key = models.CharField(max_length=200)
    concept = models.ForeignKey(Memory, on_delete=models.CASCADE, related_name="names")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant", "key"], name="memory_conceptname_once")]


class Relationship(TenantModel):
    """A named relation of one concept to another."""

    author = _author()
    source = models.ForeignKey(Memory, on_delete=models.CASCADE, related_name="outgoing", db_index=False)
    target = models.ForeignKey(Memory, on_delete=models.CASCADE, related_name="incoming", db_index=False)
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


class SearchTerm(TenantModel):
    """A stemmed word of a memory, with its frequency there and the memory's length, from which BM25 is computed.

    A term of the context (speaker, month) may also be in the text; if not, its frequency is 0. The marks of a memory's
    metadata (see the function memory_marks) are terms that begin with a space. `superseded`: the memory is superseded
    or, of an item, had ended when it was stored.
    """

    scope = models.BigIntegerField(db_default=0)
    term = models.TextField()
    memory = models.ForeignKey(
        Memory, on_delete=models.CASCADE, to_field="place", db_column="place", related_name="terms"
    )
    frequency = models.PositiveSmallIntegerField()
    length = models.PositiveIntegerField()
    of_context = models.BooleanField(db_default=False)
    superseded = models.BooleanField(db_default=False)

    class Meta:
        constraints = [
            # Serves search.RECALL: a term's memories, their number and their scores, from the index alone.
            models.UniqueConstraint(
                fields=["tenant", "scope", "term", "memory"],
                include=["frequency", "length", "of_context", "superseded"],
                name="memory_searchterm_once",
            ),
        ]


class TermFrequency(TenantModel):
    """How many memories of a scope have a term, if they are more than COMMON. A periodic job counts them.

    The row of the empty term holds how many memories the scope had then.
    """

    scope = models.BigIntegerField()
    term = models.TextField()
    memories = models.BigIntegerField()

    class Meta:
        constraints = [
            # Serves search.RECALL, from the index alone.
            models.UniqueConstraint(
                fields=["tenant", "scope", "term"], include=["memories"], name="memory_termfrequency_once"
            ),
        ]


class SearchTotals(TenantModel):
    """The totals of a scope, which are the sums of its rows.

    Each writer appends its difference, since writers of one counter would wait for each other; a job sums them up.
    Superseded observations count as memories, but not as observations.
    """

    scope = models.BigIntegerField(db_default=0)
    observations = models.BigIntegerField()
    patterns = models.BigIntegerField()
    concepts = models.BigIntegerField()
    memories = models.BigIntegerField()
    words = models.BigIntegerField()
    folded = models.BooleanField(db_default=False)
    """Whether it is a sum."""

    class Meta:
        indexes = [
            # Serves search.fold_totals().
            models.Index(fields=["tenant", "scope"], condition=Q(folded=False), name="memory_searchtotals_fresh"),
            # Serves search.count_frequencies().
            models.Index(
                fields=["tenant", "scope"], condition=Q(memories__gt=COMMON), name="memory_searchtotals_large"
            ),
            # Serves sql.held() and search.RECALL, from the index alone.
            models.Index(
                fields=["tenant", "scope"],
                include=["observations", "patterns", "concepts", "memories", "words"],
                name="memory_searchtotals_of_scope",
            ),
        ]


class RealField(models.FloatField):  # type: ignore[type-arg]  # not subscriptable at run time
    """A number in four bytes."""

    def db_type(self, connection: BaseDatabaseWrapper) -> str:
        return "real"


class Vector(TenantModel):
    """The vector of a memory, of length 1. It is current while the memory names the same embedder.

    The numbers are an array, which needs no extension of PostgreSQL; recall casts it to a type of pgvector.
    """

    memory = models.OneToOneField(
        Memory, on_delete=models.CASCADE, to_field="place", db_column="place", related_name="vector"
    )
    scope = models.BigIntegerField()
    embedder = models.IntegerField()
    embedding = ArrayField(RealField())

    class Meta:
        indexes = [
            # Serves vectors.recall_statement(), where it looks at each.
            models.Index(fields=["tenant", "scope", "embedder"], name="memory_vector_of_scope"),
        ]
