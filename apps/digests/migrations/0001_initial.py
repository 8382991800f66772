from datetime import timedelta

from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models
from django.db.models import F, Func, Q

from apps.core.rls import held_by, immutable, kept
from apps.core.tables import CreateModels, both_or_neither, reference, table

# Room in each page for the new versions of rows that are updated again and again without touching an index.
STORAGE = """
alter table digests_thread set (fillfactor = 75);
alter table digests_receiptstate set (fillfactor = 75);
alter table digests_inbox set (fillfactor = 75);
"""

# What nobody has acked stays: neither its state nor the receipt itself can be deleted, and a tombstone holds nothing
# that its recipient has not acked.
KEPT = """
create function digests_unacked_is_kept() returns trigger language plpgsql as $$
begin
    raise exception 'unacked receipts are kept' using errcode = 'integrity_constraint_violation',
        constraint = 'digests_unacked_is_kept';
end $$;
create trigger digests_unacked_is_kept before delete on digests_receiptstate
    for each row when (old.acked_at is null) execute function digests_unacked_is_kept();
create function digests_unacked_receipt_is_kept() returns trigger language plpgsql as $$
begin
    if exists (select from digests_receiptstate where receipt_id = old.id and acked_at is null) then
        raise exception 'unacked receipts are kept' using errcode = 'integrity_constraint_violation',
            constraint = 'digests_unacked_receipt_is_kept';
    end if;
    return case when tg_op = 'DELETE' then old else new end;
end $$;
create trigger digests_unacked_receipt_is_kept before delete on receipts_receipt
    for each row execute function digests_unacked_receipt_is_kept();
create trigger digests_unacked_receipt_stays_whole before update on receipts_receipt
    for each row when (old.pruned_at is null and new.pruned_at is not null)
    execute function digests_unacked_receipt_is_kept();
"""


class Migration(migrations.Migration):
    initial = True

    dependencies = [("principals", "0001_initial"), ("receipts", "0001_initial")]

    operations = [
        CreateModels(
            table(
                "Inbox",
                ("last_seq", models.BigIntegerField(default=0, db_default=0)),
                ("visible_unread", models.PositiveIntegerField(default=0, db_default=0)),
                ("pending_unread", models.PositiveIntegerField(default=0, db_default=0)),
                ("enabled", models.BooleanField(default=True)),
                ("window", models.DurationField(default=timedelta(seconds=30))),
                ("max_items", models.IntegerField(default=20)),
                ("max_thread_age", models.DurationField(default=timedelta(days=1))),
                reference("principal", "principals.principal", "inboxes"),
                ("source_policies", models.JSONField(default=dict)),
                verbose_name_plural="inboxes",
                constraints=[
                    models.UniqueConstraint(name="digests_inbox_once", fields=["tenant", "principal"]),
                ],
            ),
            table(
                "Thread",
                ("source_system", models.CharField(max_length=50)),
                ("resource_ref", models.CharField(max_length=200)),
                ("event_family", models.CharField(max_length=100)),
                ("receipt_count", models.IntegerField(default=0)),
                ("pending_count", models.IntegerField(default=0)),
                ("flush_due_at", models.DateTimeField(null=True)),
                ("revision", models.IntegerField(default=0)),
                ("opened_at", models.DateTimeField()),
                ("closed_at", models.DateTimeField(null=True)),
                reference("inbox", "digests.inbox", "threads", lasting=True),
                constraints=[
                    models.UniqueConstraint(
                        name="digests_thread_one_open_per_key",
                        fields=["tenant", "inbox", "source_system", "resource_ref", "event_family"],
                        condition=Q(closed_at=None),
                    ),
                    models.CheckConstraint(
                        name="digests_thread_due_iff_pending",
                        condition=Q(flush_due_at=None, pending_count=0)
                        | Q(flush_due_at__isnull=False, pending_count__gt=0),
                    ),
                    models.CheckConstraint(
                        name="digests_thread_closed_without_pending",
                        condition=Q(closed_at=None) | Q(pending_count=0),
                    ),
                ],
                indexes=[
                    models.Index(
                        name="digests_thread_due",
                        fields=["flush_due_at"],
                        condition=Q(flush_due_at__isnull=False),
                        include=("inbox", "tenant"),
                    ),
                    models.Index(
                        name="digests_thread_pending",
                        fields=["inbox", "flush_due_at"],
                        condition=Q(flush_due_at__isnull=False),
                    ),
                ],
            ),
            table(
                "Entry",
                ("kind", models.CharField(max_length=15)),
                ("sequence", models.BigIntegerField()),
                ("revision", models.IntegerField(null=True)),
                ("source_system", models.CharField(max_length=50)),
                ("receipt_ids", ArrayField(models.BigIntegerField())),
                ("count", models.IntegerField()),
                ("title", models.CharField(max_length=200, null=True)),
                ("summary", models.TextField(null=True)),
                ("first_at", models.DateTimeField()),
                ("last_at", models.DateTimeField()),
                ("flush_reason", models.CharField(max_length=9, null=True)),
                ("delivery_handle", models.CharField(max_length=500, null=True)),
                ("visible_at", models.DateTimeField()),
                ("superseded_by_seq", models.BigIntegerField(null=True)),
                ("superseded_at", models.DateTimeField(null=True)),
                ("acked_at", models.DateTimeField(null=True)),
                reference("inbox", "digests.inbox", "entries", lasting=True),
                reference("thread", "digests.thread", "snapshots", null=True),
                ("pruned", models.IntegerField(default=0, db_default=0)),
                verbose_name_plural="entries",
                indexes=[
                    models.Index(
                        name="digests_entry_live",
                        fields=["tenant", "inbox", "sequence"],
                        condition=Q(acked_at=None, superseded_by_seq=None),
                    ),
                    models.Index(
                        name="digests_entry_live_by_source",
                        fields=["inbox", "source_system", "sequence"],
                        condition=Q(acked_at=None, superseded_by_seq=None),
                    ),
                    models.Index(
                        name="digests_entry_superseded",
                        fields=["inbox", "superseded_by_seq"],
                        condition=Q(acked_at=None, superseded_by_seq__isnull=False),
                    ),
                    models.Index(
                        name="digests_entry_superseded_since",
                        fields=["superseded_at", "id"],
                        condition=Q(superseded_at__isnull=False),
                    ),
                ],
                constraints=[
                    models.UniqueConstraint(name="digests_entry_sequence_once", fields=["tenant", "inbox", "sequence"]),
                    models.UniqueConstraint(
                        name="digests_entry_revision_once",
                        fields=["tenant", "thread", "revision"],
                        condition=Q(thread__isnull=False),
                    ),
                    models.UniqueConstraint(
                        name="digests_entry_one_live_per_thread",
                        fields=["tenant", "thread"],
                        condition=Q(acked_at=None, superseded_by_seq=None, thread__isnull=False),
                    ),
                    models.CheckConstraint(
                        name="digests_entry_kind_has_its_shape",
                        condition=Q(
                            count=1,
                            flush_reason=None,
                            kind="item",
                            revision=None,
                            summary=None,
                            thread=None,
                            title=None,
                        )
                        | Q(
                            flush_reason__isnull=False,
                            kind="digest_snapshot",
                            revision__isnull=False,
                            summary__isnull=False,
                            thread__isnull=False,
                            title__isnull=False,
                        ),
                    ),
                    models.CheckConstraint(
                        name="digests_entry_counts_its_receipts",
                        condition=Q(count=Func("receipt_ids", function="cardinality"), count__gt=0),
                    ),
                    models.CheckConstraint(
                        name="digests_entry_superseded_by_a_later_one",
                        condition=Q(superseded_by_seq=None) | Q(superseded_by_seq__gt=F("sequence")),
                    ),
                    models.CheckConstraint(
                        name="digests_entry_superseded_has_a_time",
                        condition=both_or_neither("superseded_by_seq", "superseded_at"),
                    ),
                    models.CheckConstraint(
                        name="digests_entry_pruned_of_its_receipts",
                        condition=Q(pruned__lte=F("count")),
                    ),
                ],
            ),
            table(
                "ReceiptState",
                (
                    "receipt",
                    models.OneToOneField(
                        db_constraint=False,
                        primary_key=True,
                        serialize=False,
                        related_name="state",
                        on_delete=models.CASCADE,
                        to="receipts.receipt",
                    ),
                ),
                ("pending", models.BooleanField(default=False)),
                ("delivered_at", models.DateTimeField(null=True)),
                ("archived_at", models.DateTimeField(null=True)),
                ("acked_at", models.DateTimeField(null=True)),
                reference("entry", "digests.entry", "items", null=True, lasting=True),
                reference("inbox", "digests.inbox", "receipts", lasting=True),
                reference("thread", "digests.thread", "receipts", null=True),
                key=False,
                constraints=[
                    models.CheckConstraint(
                        name="digests_receiptstate_in_one_place",
                        condition=Q(entry__isnull=False, pending=False, thread=None)
                        | Q(entry=None, thread__isnull=False),
                    ),
                    models.CheckConstraint(
                        name="digests_receiptstate_acked_is_not_pending",
                        condition=Q(pending=False) | Q(acked_at=None),
                    ),
                    models.CheckConstraint(
                        name="digests_receiptstate_archived_is_acked",
                        condition=Q(archived_at=None) | Q(acked_at__isnull=False),
                    ),
                ],
                indexes=[
                    models.Index(
                        name="digests_receiptstate_unread", fields=["inbox", "receipt"], condition=Q(acked_at=None)
                    ),
                    models.Index(
                        name="digests_receiptstate_by_entry", fields=["entry"], condition=Q(entry__isnull=False)
                    ),
                    models.Index(
                        name="digests_receiptstate_by_thread",
                        fields=["thread", "receipt"],
                        condition=Q(thread__isnull=False),
                    ),
                    models.Index(
                        name="digests_receiptstate_acked",
                        fields=["inbox", "receipt"],
                        condition=Q(acked_at__isnull=False),
                    ),
                ],
            ),
            table(
                "Source",
                ("name", models.CharField(max_length=50)),
                ("rate_per_hour", models.IntegerField(null=True)),
                ("groups_by_dedupe_key", models.BooleanField(default=False, db_default=False)),
                constraints=[
                    models.UniqueConstraint(name="digests_source_name_once", fields=["tenant", "name"]),
                ],
            ),
            table(
                "SourceHour",
                ("name", models.CharField(max_length=50)),
                ("hour", models.DateTimeField()),
                ("posted", models.IntegerField()),
                constraints=[
                    models.UniqueConstraint(name="digests_sourcehour_name_once", fields=["tenant", "name"]),
                ],
            ),
        ),
        immutable(
            "digests_entry",
            except_columns=("superseded_by_seq", "superseded_at", "acked_at"),
            redactable=("title", "summary"),
            prunable=("pruned",),
        ),
        *(kept(f"digests_{name}") for name in ("inbox", "entry", "thread", "receiptstate")),
        migrations.RunSQL(STORAGE),
        migrations.RunSQL(KEPT),
        held_by("receipts_receipt", "digests_receiptstate.receipt_id"),
        held_by("digests_entry", "digests_receiptstate.entry_id"),
    ]
