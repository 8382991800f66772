"""Inboxes, threads, entries, and where each receipt stands."""

from datetime import timedelta
from typing import Final

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Func, Q

from apps.core.erasure import Rows, register
from apps.core.tables import both_or_neither
from apps.principals.models import Principal, TenantModel
from apps.receipts.models import Receipt

# A thread rolls over when it has held this many receipts, which bounds a snapshot.
THREAD_LIMIT: Final = 500


class Kind(models.TextChoices):
    """What an entry is: one receipt, or a snapshot of a thread."""

    ITEM = "item"
    DIGEST_SNAPSHOT = "digest_snapshot"


class FlushReason(models.TextChoices):
    """Why a snapshot was made. All but `narrow` surface something new."""

    WINDOW = "window"
    SIZE = "size"
    IMMEDIATE = "immediate"
    ROLLOVER = "rollover"
    LIFECYCLE = "lifecycle"
    NARROW = "narrow"


class Source(TenantModel):
    """What operators have set for the receipts of one source system; a source without a row has the defaults.

    `rate_per_hour` takes the place of the deployment's rate limit. With `groups_by_dedupe_key`, receipts without a
    group of their own are grouped by keys of the form `{source}:{event_type}:{entity}:{version}`.
    """

    name = models.CharField(max_length=50)
    rate_per_hour = models.IntegerField(null=True)
    groups_by_dedupe_key = models.BooleanField(default=False, db_default=False)

    class Meta:
        constraints = [
            # Serves selectors.source_rule().
            models.UniqueConstraint(fields=["tenant", "name"], name="digests_source_name_once"),
        ]

    def __str__(self) -> str:
        return self.name


class SourceHour(TenantModel):
    """How many receipts a source has posted in the latest hour in which it posted any; one row a source.

    Written last in the transaction that posts, so that posts of one source wait for each other's commit alone.
    """

    name = models.CharField(max_length=50)
    hour = models.DateTimeField()
    posted = models.IntegerField()

    class Meta:
        constraints = [
            # Serves selectors.room_for() and sql.COUNT_POSTS.
            models.UniqueConstraint(fields=["tenant", "name"], name="digests_sourcehour_name_once"),
        ]


class Inbox(TenantModel):
    """What one principal owns: a counter, a policy, entries. Its row is the mutex of everything in it.

    Whatever changes an inbox locks this row first, in a statement of its own. `last_seq` is the sequence of the
    newest entry, hence the state that a read is as of; it never goes back. The unread counters are kept under the
    same lock, so that they always equal what counting would give.
    """

    principal = models.ForeignKey(Principal, on_delete=models.PROTECT, related_name="inboxes", db_index=False)
    last_seq = models.BigIntegerField(default=0, db_default=0)
    visible_unread = models.PositiveIntegerField(default=0, db_default=0)
    pending_unread = models.PositiveIntegerField(default=0, db_default=0)
    # The policy: how receipts with a group are buffered.
    enabled = models.BooleanField(default=True)
    window = models.DurationField(default=timedelta(seconds=30))
    max_items = models.IntegerField(default=20)
    max_thread_age = models.DurationField(default=timedelta(hours=24))
    source_policies = models.JSONField(
        default=dict, help_text="The values that single sources have instead, named as in the API, by source."
    )

    class Meta:
        verbose_name_plural = "inboxes"
        constraints = [
            models.UniqueConstraint(fields=["tenant", "principal"], name="digests_inbox_once"),
        ]

    def __str__(self) -> str:
        return f"inbox of {self.principal}"


class Thread(TenantModel):
    """The mutable group behind snapshots: receipts about one resource, of one family, from one source.

    Receipts wait in its burst buffer (`pending_count`, `flush_due_at`) and surface by snapshots, numbered by
    `revision`. It closes when all is acked and nothing waits, or when it rolls over; its live snapshot stays visible.
    """

    inbox = models.ForeignKey(
        Inbox, on_delete=models.PROTECT, related_name="threads", db_index=False, db_constraint=False
    )
    source_system = models.CharField(max_length=50)
    resource_ref = models.CharField(max_length=200)
    event_family = models.CharField(max_length=100)
    receipt_count = models.IntegerField(default=0)
    pending_count = models.IntegerField(default=0)
    flush_due_at = models.DateTimeField(null=True)
    revision = models.IntegerField(default=0)
    opened_at = models.DateTimeField()
    closed_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "inbox", "source_system", "resource_ref", "event_family"],
                condition=Q(closed_at=None),
                name="digests_thread_one_open_per_key",
            ),
            models.CheckConstraint(
                condition=Q(pending_count=0, flush_due_at=None) | Q(pending_count__gt=0, flush_due_at__isnull=False),
                name="digests_thread_due_iff_pending",
            ),
            models.CheckConstraint(
                condition=Q(closed_at=None) | Q(pending_count=0), name="digests_thread_closed_without_pending"
            ),
        ]
        indexes = [
            # Serves selectors.due_inboxes(), twice a second, by itself. Like the next one it knows the buffer by its
            # due time, which stands from the first receipt to the flush: counting the others up touches no index.
            models.Index(
                fields=["flush_due_at"],
                include=["inbox", "tenant"],
                name="digests_thread_due",
                condition=Q(flush_due_at__isnull=False),
            ),
            # Serves selectors.due_threads(), and what a policy change flushes.
            models.Index(
                fields=["inbox", "flush_due_at"],
                name="digests_thread_pending",
                condition=Q(flush_due_at__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.source_system} {self.resource_ref} {self.event_family}"


class Entry(TenantModel):
    """What an agent reads and acks: one receipt (`item`) or an immutable snapshot of a thread.

    Visible as of N: `sequence <= N`, not superseded at or before N, not acked. An item's title and summary are its
    receipt's; a snapshot's are made once, when its thread is flushed. `receipt_ids` are primary keys of receipts; `pruned`
    says how many of them retention has removed since.
    """

    inbox = models.ForeignKey(
        Inbox, on_delete=models.PROTECT, related_name="entries", db_index=False, db_constraint=False
    )
    kind = models.CharField(max_length=15, choices=Kind)
    sequence = models.BigIntegerField()
    thread = models.ForeignKey(Thread, on_delete=models.PROTECT, null=True, related_name="snapshots", db_index=False)
    revision = models.IntegerField(null=True)
    source_system = models.CharField(max_length=50)
    receipt_ids = ArrayField(models.BigIntegerField())
    count = models.IntegerField()
    pruned = models.IntegerField(default=0, db_default=0)
    title = models.CharField(max_length=200, null=True)
    summary = models.TextField(null=True)
    first_at = models.DateTimeField()
    last_at = models.DateTimeField()
    flush_reason = models.CharField(max_length=9, choices=FlushReason, null=True)
    delivery_handle = models.CharField(max_length=500, null=True)
    visible_at = models.DateTimeField()
    superseded_by_seq = models.BigIntegerField(null=True)
    superseded_at = models.DateTimeField(null=True)
    acked_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name_plural = "entries"
        constraints = [
            # Serves selectors.history() and look-ups by sequence.
            models.UniqueConstraint(fields=["tenant", "inbox", "sequence"], name="digests_entry_sequence_once"),
            models.UniqueConstraint(
                fields=["tenant", "thread", "revision"],
                condition=Q(thread__isnull=False),
                name="digests_entry_revision_once",
            ),
            models.UniqueConstraint(
                fields=["tenant", "thread"],
                condition=Q(thread__isnull=False, acked_at=None, superseded_by_seq=None),
                name="digests_entry_one_live_per_thread",
            ),
            models.CheckConstraint(
                condition=Q(
                    kind=Kind.ITEM, thread=None, revision=None, flush_reason=None, title=None, summary=None, count=1
                )
                | Q(
                    kind=Kind.DIGEST_SNAPSHOT,
                    thread__isnull=False,
                    revision__isnull=False,
                    flush_reason__isnull=False,
                    title__isnull=False,
                    summary__isnull=False,
                ),
                name="digests_entry_kind_has_its_shape",
            ),
            models.CheckConstraint(
                condition=Q(count=Func("receipt_ids", function="cardinality"), count__gt=0),
                name="digests_entry_counts_its_receipts",
            ),
            models.CheckConstraint(condition=Q(pruned__lte=F("count")), name="digests_entry_pruned_of_its_receipts"),
            models.CheckConstraint(
                condition=Q(superseded_by_seq=None) | Q(superseded_by_seq__gt=F("sequence")),
                name="digests_entry_superseded_by_a_later_one",
            ),
            models.CheckConstraint(
                condition=both_or_neither("superseded_by_seq", "superseded_at"),
                name="digests_entry_superseded_has_a_time",
            ),
        ]
        indexes = [
            # Serves sql.READ and sql.BOUNDARY: what is visible now. The tenant leads, or the planner takes the index of
            # digests_entry_sequence_once and reads all that was ever acked.
            models.Index(
                fields=["tenant", "inbox", "sequence"],
                name="digests_entry_live",
                condition=Q(acked_at=None, superseded_by_seq=None),
            ),
            # Serves sql.READ with a source, and sql.UNREAD_OF_SOURCE.
            models.Index(
                fields=["inbox", "source_system", "sequence"],
                name="digests_entry_live_by_source",
                condition=Q(acked_at=None, superseded_by_seq=None),
            ),
            # Serves sql.BOUNDARY: what an older read was shown and has been superseded since.
            models.Index(
                fields=["inbox", "superseded_by_seq"],
                name="digests_entry_superseded",
                condition=Q(acked_at=None, superseded_by_seq__isnull=False),
            ),
            # Serves sql.DROP_SUPERSEDED: what retention finds to remove.
            models.Index(
                fields=["superseded_at", "id"],
                name="digests_entry_superseded_since",
                condition=Q(superseded_at__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"ent_{self.pk}"


class ReceiptState(TenantModel):
    """Where one receipt stands in its inbox, and how far it has come: delivered, archived, acked, which is read.

    A receipt is in one place: an item entry of its own, or a thread, there pending or visible. One row per
    receipt of the inbox surface; ledger receipts have none.
    """

    receipt = models.OneToOneField(
        Receipt, on_delete=models.CASCADE, primary_key=True, related_name="state", db_constraint=False
    )
    inbox = models.ForeignKey(
        Inbox, on_delete=models.PROTECT, related_name="receipts", db_index=False, db_constraint=False
    )
    entry = models.ForeignKey(
        Entry, on_delete=models.PROTECT, null=True, related_name="items", db_index=False, db_constraint=False
    )
    thread = models.ForeignKey(Thread, on_delete=models.PROTECT, null=True, related_name="receipts", db_index=False)
    pending = models.BooleanField(default=False)
    delivered_at = models.DateTimeField(null=True)
    archived_at = models.DateTimeField(null=True)
    acked_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(entry__isnull=False, thread=None, pending=False) | Q(entry=None, thread__isnull=False),
                name="digests_receiptstate_in_one_place",
            ),
            models.CheckConstraint(
                condition=Q(pending=False) | Q(acked_at=None), name="digests_receiptstate_acked_is_not_pending"
            ),
            models.CheckConstraint(
                condition=Q(archived_at=None) | Q(acked_at__isnull=False),
                name="digests_receiptstate_archived_is_acked",
            ),
        ]
        indexes = [
            # Serve sql.UNREAD and sql.LISTED, the raw path. Each row is in one of them, so that neither can take the
            # place of the other and walk what is not asked for.
            models.Index(fields=["inbox", "receipt"], name="digests_receiptstate_unread", condition=Q(acked_at=None)),
            models.Index(
                fields=["inbox", "receipt"], name="digests_receiptstate_acked", condition=Q(acked_at__isnull=False)
            ),
            # Serves sql.MEMBERS: what a snapshot of a thread holds; and the removal of a thread.
            models.Index(
                fields=["thread", "receipt"],
                name="digests_receiptstate_by_thread",
                condition=Q(thread__isnull=False),
            ),
            # Serves the removal of an entry.
            models.Index(fields=["entry"], name="digests_receiptstate_by_entry", condition=Q(entry__isnull=False)),
        ]


# What rows lose when a subject is forgotten.
register(
    Rows(
        table="digests_entry",
        # An item has neither title nor summary of its own.
        redacted={
            "title": "case when title is null then null else '' end",
            "summary": "case when summary is null then null else '' end",
        },
        # A snapshot quotes its receipts. Later snapshots are made without redacted ones.
        also="receipt_ids && array(select id from receipts_receipt where tenant_id = %(tenant)s"
        " and redacted_at >= least(now(), gatehouse_now()))",
    ),
    Rows(table="digests_thread", redacted={"resource_ref": "'forgotten:' || id"}),
)
