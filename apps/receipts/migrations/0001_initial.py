from django.db import migrations, models
from django.db.models import F, Q

from apps.core.rls import held_by, immutable, kept
from apps.core.tables import CreateModels, reference, table

_SAID = (
    "title",
    "summary",
    "metadata",
    "dedupe_key",
    "artifact_pointer",
    "artifact_location",
    "suggested_next_step",
    "resource_ref",
    "summary_hint",
    "delivery_handle",
)


class Migration(migrations.Migration):
    initial = True

    dependencies = [("principals", "0001_initial")]

    operations = [
        CreateModels(
            table(
                "Receipt",
                ("uuid", models.UUIDField(editable=False)),
                ("receipt_id", models.CharField(max_length=100)),
                ("source_system", models.CharField(max_length=50)),
                ("event_type", models.CharField(max_length=50)),
                ("dedupe_key", models.CharField(max_length=200)),
                ("title", models.CharField(max_length=200, null=True)),
                ("summary", models.TextField()),
                ("metadata", models.JSONField(default=dict)),
                ("artifact_pointer", models.TextField(null=True)),
                ("artifact_location", models.TextField(null=True)),
                ("requires_action", models.BooleanField(default=False)),
                ("suggested_next_step", models.TextField(null=True)),
                ("caused_by_ref", models.CharField(max_length=100, null=True)),
                ("pairs_with_ref", models.CharField(max_length=100, null=True)),
                ("surface", models.CharField(max_length=6)),
                ("groupable", models.BooleanField(null=True)),
                ("resource_ref", models.CharField(max_length=200, null=True)),
                ("event_family", models.CharField(max_length=100, null=True)),
                ("flush_class", models.CharField(max_length=9, default="normal")),
                ("summary_hint", models.CharField(max_length=1000, null=True)),
                ("break_thread", models.BooleanField(default=False)),
                ("delivery_handle", models.CharField(max_length=500, null=True)),
                ("created_at", models.DateTimeField()),
                ("redacted_at", models.DateTimeField(null=True)),
                reference(
                    "caused_by",
                    "receipts.receipt",
                    "consequences",
                    on_delete=models.SET_NULL,
                    null=True,
                    lasting=True,
                ),
                reference(
                    "pairs_with", "receipts.receipt", "pairs", on_delete=models.SET_NULL, null=True, lasting=True
                ),
                reference("poster", "principals.principal", "posted", lasting=True),
                reference("recipient", "principals.principal", "received", lasting=True),
                ("pruned_at", models.DateTimeField(null=True)),
                constraints=[
                    models.UniqueConstraint(name="receipts_receipt_id_once", fields=["tenant", "receipt_id"]),
                    models.UniqueConstraint(name="receipts_receipt_uuid_once", fields=["tenant", "uuid"]),
                    models.CheckConstraint(
                        name="receipts_receipt_not_its_own_cause",
                        condition=~Q(id__in=[F("caused_by"), F("pairs_with")]),
                    ),
                    models.CheckConstraint(
                        name="receipts_receipt_link_has_a_reference",
                        condition=(Q(caused_by=None) | Q(caused_by_ref__isnull=False))
                        & (Q(pairs_with=None) | Q(pairs_with_ref__isnull=False)),
                    ),
                ],
                indexes=[
                    models.Index(
                        name="receipts_receipt_by_cause", fields=["caused_by"], condition=Q(caused_by__isnull=False)
                    ),
                    models.Index(
                        name="receipts_receipt_by_pair",
                        fields=["pairs_with"],
                        condition=Q(pairs_with__isnull=False),
                    ),
                    models.Index(
                        name="receipts_receipt_no_cause_yet",
                        fields=["tenant", "caused_by_ref"],
                        condition=Q(caused_by=None, caused_by_ref__isnull=False),
                    ),
                    models.Index(
                        name="receipts_receipt_no_pair_yet",
                        fields=["tenant", "pairs_with_ref"],
                        condition=Q(pairs_with=None, pairs_with_ref__isnull=False),
                    ),
                    models.Index(
                        name="receipts_receipt_of_source",
                        fields=["recipient", "source_system", "id"],
                        condition=Q(pruned_at=None, surface="inbox"),
                    ),
                ],
            ),
            table(
                "ReceiptKey",
                ("source_system", models.CharField(max_length=50)),
                ("key_digest", models.BinaryField(max_length=32)),
                ("content_digest", models.BinaryField(max_length=32)),
                ("receipt_pk", models.BigIntegerField()),
                ("receipt_id", models.CharField(max_length=100)),
                ("uuid", models.UUIDField()),
                ("created_at", models.DateTimeField()),
                constraints=[
                    models.UniqueConstraint(
                        name="receipts_receiptkey_used_once", fields=["tenant", "source_system", "key_digest"]
                    ),
                ],
            ),
            table(
                "Obligation",
                (
                    "receipt",
                    models.OneToOneField(
                        primary_key=True,
                        serialize=False,
                        related_name="obligation",
                        on_delete=models.CASCADE,
                        to="receipts.receipt",
                        db_constraint=False,
                    ),
                ),
                ("opened_at", models.DateTimeField()),
                ("closed_at", models.DateTimeField(null=True)),
                reference(
                    "closed_by",
                    "receipts.receipt",
                    "closed_obligations",
                    on_delete=models.SET_NULL,
                    null=True,
                    lasting=True,
                ),
                reference("creditor", "principals.principal", "awaits", lasting=True),
                reference("debtor", "principals.principal", "owes", lasting=True),
                key=False,
                constraints=[
                    models.CheckConstraint(
                        name="receipts_obligation_closer_has_a_time",
                        condition=Q(closed_by=None) | Q(closed_at__isnull=False),
                    ),
                ],
                indexes=[
                    models.Index(
                        name="receipts_obligation_owed",
                        fields=["tenant", "debtor", "receipt"],
                        condition=Q(closed_at=None),
                    ),
                    models.Index(
                        name="receipts_obligation_awaited",
                        fields=["tenant", "creditor", "receipt"],
                        condition=Q(closed_at=None),
                    ),
                    models.Index(
                        name="receipts_obligation_by_closer",
                        fields=["closed_by"],
                        condition=Q(closed_by__isnull=False),
                    ),
                ],
            ),
        ),
        immutable(
            "receipts_receipt",
            except_columns=("caused_by_id", "pairs_with_id"),
            redactable=(*_SAID, "redacted_at"),
            prunable=(*_SAID, "pruned_at"),
        ),
        immutable("receipts_receiptkey"),
        kept("receipts_receipt"),
        kept("receipts_receiptkey"),
        *(held_by("receipts_receipt", f"receipts_receipt.{link}_id") for link in ("caused_by", "pairs_with")),
        *(held_by("receipts_receipt", f"receipts_obligation.{link}_id") for link in ("receipt", "closed_by")),
    ]
