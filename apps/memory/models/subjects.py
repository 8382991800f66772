"""Whom memories are about, and what is remembered of them."""

from datetime import datetime
from typing import Self

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Exists, F, OuterRef, Q

from apps.memory.models.confidence import sure
from apps.memory.references import item_ref
from apps.memory.states import ItemType
from apps.principals.models import Principal, TenantModel


class SubjectQuerySet(models.QuerySet["Subject"]):
    def shared_with(self, name: str) -> Self:
        """Those that this principal may read: at their own wish or, where they have none, at their tenant's."""
        return self.filter(_shared_with(name))

    def settled_by(self, name: str, *, principal_id: int) -> Self:
        """Those that the principal of this name may read, or has added."""
        return self.filter(_shared_with(name) | Q(added_by=principal_id))


def _shared_with(name: str) -> Q:
    closed = MemoryPolicy.objects.filter(tenant_id=OuterRef("tenant_id"), share_with__isnull=False)
    closed = closed.exclude(share_with__contains=[name])
    return Q(share_with__contains=[name]) | Q(~Exists(closed), share_with=None)


class Subject(TenantModel):
    """Somebody that memories are about, and what may be done with them.

    `rev` grows in every transaction that changes what an envelope of the subject would say; whoever writes about a
    subject holds its row. `share_with` names the principals that may read it: null is the tenant's default, empty is
    nobody. Nothing of it has had its days (`delete_after_days`) before `expires_at`; null: nothing ever will. `added_by`
    added it, and `author` changed it last; null: nobody knows.
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
    added_by = models.ForeignKey(Principal, on_delete=models.PROTECT, null=True, related_name="+", db_index=False)
    author = models.ForeignKey(Principal, on_delete=models.PROTECT, null=True, related_name="+", db_index=False)
    rev = models.BigIntegerField(default=1)
    created_at = models.DateTimeField()
    revised_at = models.DateTimeField()

    objects = SubjectQuerySet.as_manager()

    class Meta:
        constraints = [
            # Serves sql.READABLE and sql.ENVELOPE.
            models.UniqueConstraint(fields=["tenant", "key"], name="memory_subject_key_once"),
            models.CheckConstraint(condition=Q(rev__gte=1), name="memory_subject_rev_counts_from_1"),
            models.CheckConstraint(
                condition=Q(delete_after_days=None) | Q(delete_after_days__gte=1),
                name="memory_subject_is_kept_a_day_at_least",
            ),
            models.CheckConstraint(
                condition=Q(expires_at=None) | Q(delete_after_days__isnull=False),
                name="memory_subject_that_keeps_all_never_expires",
            ),
        ]
        indexes = [
            # Serves sql.EXPIRED.
            models.Index(fields=["expires_at"], name="memory_subject_expiring", condition=Q(expires_at__isnull=False)),
        ]

    def __str__(self) -> str:
        return self.key


class ItemQuerySet(models.QuerySet["Item"]):
    def true_between(self, begin: datetime, end: datetime) -> Self:
        """What was, or is, so at any time from a moment up to another."""
        return self.filter(Q(valid_to=None) | Q(valid_to__gt=begin), valid_from__lt=end)


class Item(TenantModel):
    """One thing remembered of a subject, as it was known from `recorded_at` to `superseded_at`.

    It was, or is, so from `valid_from` to `valid_to`; null is open. `said_at` is when somebody last said it: its age
    counts from there. Rows are never rewritten: a newer one stands in the place of an older, with the rest of the
    older's time in a row of its own. What was superseded by an item that is forgotten stays so. `stated` says that the subject said so itself, which nothing learned undoes.
    `text_digest` is of the text as duplicates are told by, and `slot_key` what the slot is compared by.
    """

    subject = models.ForeignKey(Subject, on_delete=models.CASCADE, related_name="items", db_index=False)
    author = models.ForeignKey(Principal, on_delete=models.PROTECT, related_name="+", db_index=False)
    type = models.CharField(max_length=16, choices=ItemType)
    text = models.TextField()
    text_digest = models.BinaryField(max_length=32)
    slot = models.CharField(max_length=200, null=True)
    slot_key = models.CharField(max_length=200, null=True)
    confidence = models.FloatField()
    source = models.CharField(max_length=200, blank=True)
    stated = models.BooleanField(default=False)
    evidence = models.JSONField(default=list)
    valid_from = models.DateTimeField()
    valid_to = models.DateTimeField(null=True)
    said_at = models.DateTimeField()
    recorded_at = models.DateTimeField()
    superseded_at = models.DateTimeField(null=True)
    superseded_by = models.ForeignKey(
        "self", on_delete=models.SET_NULL, null=True, related_name="supersedes", db_index=False
    )

    objects = ItemQuerySet.as_manager()

    class Meta:
        constraints = [
            sure("memory_item_confidence_between_0_and_1"),
            models.CheckConstraint(condition=Q(type__in=ItemType.values), name="memory_item_type_known"),
            models.CheckConstraint(
                condition=Q(valid_to=None) | Q(valid_to__gt=F("valid_from")), name="memory_item_true_for_a_while"
            ),
            models.CheckConstraint(
                condition=Q(superseded_by=None) | Q(superseded_at__isnull=False),
                name="memory_item_superseded_by_an_item_at_a_time",
            ),
            models.CheckConstraint(condition=~Q(superseded_by=F("id")), name="memory_item_not_superseded_by_itself"),
            models.CheckConstraint(
                condition=Q(superseded_at=None) | Q(superseded_at__gte=F("recorded_at")),
                name="memory_item_known_before_superseded",
            ),
            models.CheckConstraint(condition=~Q(slot="") & ~Q(slot_key=""), name="memory_item_slot_has_a_name"),
            models.CheckConstraint(
                condition=Q(slot=None, slot_key=None) | Q(slot__isnull=False, slot_key__isnull=False),
                name="memory_item_slot_has_a_key",
            ),
            # What is so without an end is so once.
            models.UniqueConstraint(
                fields=["tenant", "subject", "slot_key"],
                name="memory_item_slot_holds_one",
                condition=Q(superseded_at=None, valid_to=None, slot_key__isnull=False),
            ),
            models.UniqueConstraint(
                fields=["tenant", "subject", "type", "text_digest", "slot_key"],
                name="memory_item_said_once",
                condition=Q(superseded_at=None, valid_to=None),
                nulls_distinct=False,
            ),
        ]
        indexes = [
            # Serves sql.ENVELOPE: the newest of each type, of what has no end.
            models.Index(
                fields=["tenant", "subject", "type", "-said_at", "-id"],
                name="memory_item_current",
                condition=Q(superseded_at=None, valid_to=None),
            ),
            # Serves sql.ENVELOPE: of what has an end, that which has not ended.
            models.Index(
                fields=["subject", "type", "valid_to"],
                name="memory_item_ending",
                condition=Q(superseded_at=None, valid_to__isnull=False),
            ),
            # Serves services.remember(): what else answers the question, or says the same, and how long it is so.
            models.Index(
                fields=["subject", "slot_key", "valid_to"],
                name="memory_item_answering",
                condition=Q(superseded_at=None, slot_key__isnull=False),
            ),
            models.Index(
                fields=["subject", "text_digest", "valid_to"],
                name="memory_item_saying",
                condition=Q(superseded_at=None),
            ),
            # Serves selectors.items(): what stands, however much was superseded.
            models.Index(fields=["subject", "-id"], name="memory_item_standing", condition=Q(superseded_at=None)),
            # Serves selectors.items() with `known_at`, the export and the removal of a subject.
            models.Index(fields=["subject", "-id"], name="memory_item_listed"),
            # Serves sql.EXPIRED_ITEMS.
            models.Index(fields=["subject", "said_at", "id"], name="memory_item_of_subject"),
            # Serves selectors.was_served() and has_said(): a text, whatever has become of it.
            models.Index(fields=["subject", "text_digest"], name="memory_item_of_text"),
            # Serves selectors.memory_of() and the removal of an item.
            models.Index(
                fields=["superseded_by"], name="memory_item_by_newer", condition=Q(superseded_by__isnull=False)
            ),
        ]

    def __str__(self) -> str:
        return self.ref

    @property
    def ref(self) -> str:
        return item_ref(self.pk)


class MemoryPolicy(TenantModel):
    """What a tenant has settled for all its subjects; a tenant without a row has settled nothing.

    The windows say for how many whole days after it was said an item of each type stands in envelopes. `share_with`
    is for subjects that have none of their own; null is everybody in the tenant. `author` settled it last; null: nobody
    knows.
    """

    fact_days = models.PositiveIntegerField()
    pattern_days = models.PositiveIntegerField()
    narrative_days = models.PositiveIntegerField()
    share_with = ArrayField(models.CharField(max_length=50), null=True)
    author = models.ForeignKey(Principal, on_delete=models.PROTECT, null=True, related_name="+", db_index=False)
    revised_at = models.DateTimeField()

    class Meta:
        verbose_name_plural = "memory policies"
        constraints = [
            models.UniqueConstraint(fields=["tenant"], name="memory_memorypolicy_once"),
            models.CheckConstraint(
                condition=Q(fact_days__gte=1, pattern_days__gte=1, narrative_days__gte=1),
                name="memory_memorypolicy_windows_last_a_day",
            ),
            models.CheckConstraint(
                condition=Q(fact_days__lte=36_500, pattern_days__lte=36_500, narrative_days__lte=36_500),
                name="memory_memorypolicy_windows_end",
            ),
        ]

    def __str__(self) -> str:
        return f"policy {self.pk}"


class EnvelopeLoaded(TenantModel):
    """ENVELOPE_LOADED: that a viewer was given an envelope, and which.

    It holds no content: `digest` is keyed, and says only whether two were the same.
    """

    subject = models.ForeignKey(Subject, on_delete=models.CASCADE, related_name="loads", db_index=False)
    viewer = models.ForeignKey(Principal, on_delete=models.PROTECT, related_name="+", db_index=False)
    rev = models.BigIntegerField()
    digest = models.BinaryField(max_length=32)
    loaded_at = models.DateTimeField()

    class Meta:
        verbose_name_plural = "envelopes loaded"
        indexes = [
            # Serves selectors.was_served() and the removal of a subject.
            models.Index(fields=["subject", "viewer", "loaded_at"], name="memory_envelopeloaded_to"),
            # Serves selectors.export().
            models.Index(fields=["subject", "-id"], name="memory_envelopeloaded_listed"),
            # Serves sql.DROP_OLD_LOADS.
            models.Index(fields=["loaded_at"], name="memory_envelopeloaded_old"),
        ]

    def __str__(self) -> str:
        return f"{self.subject_id}@{self.rev}"


class Forgotten(TenantModel):
    """That something was forgotten on request, so that a late repetition does not bring it back.

    It holds no content and no name: `digest` is keyed with the deployment's own key.
    """

    digest = models.BinaryField(max_length=32)
    forgotten_at = models.DateTimeField()

    class Meta:
        constraints = [
            # Serves selectors.forgotten_among().
            models.UniqueConstraint(fields=["tenant", "digest"], name="memory_forgotten_once"),
        ]

    def __str__(self) -> str:
        return f"forgotten {self.pk}"
