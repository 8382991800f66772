import django.db.models.deletion
from django.db import migrations, models

from apps.core.rls import held_by, immutable, kept, protect
from apps.core.tables import CreateModels, id_field, reference, tenant_field

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
            migrations.CreateModel(
                name="Receipt",
                fields=[
                    id_field(),
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
                    (
                        "surface",
                        models.CharField(
                            choices=[("inbox", "Inbox"), ("ledger", "Ledger"), ("remote", "Remote")], max_length=6
                        ),
                    ),
                    ("groupable", models.BooleanField(null=True)),
                    ("resource_ref", models.CharField(max_length=200, null=True)),
                    ("event_family", models.CharField(max_length=100, null=True)),
                    (
                        "flush_class",
                        models.CharField(
                            choices=[("normal", "Normal"), ("immediate", "Immediate")], default="normal", max_length=9
                        ),
                    ),
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
                    tenant_field(),
                    ("pruned_at", models.DateTimeField(null=True)),
                ],
                options={
                    "constraints": [
                        models.UniqueConstraint(fields=("tenant", "receipt_id"), name="receipts_receipt_id_once"),
                        models.UniqueConstraint(fields=("tenant", "uuid"), name="receipts_receipt_uuid_once"),
                        models.CheckConstraint(
                            condition=models.Q(("flush_class__in", ["normal", "immediate"])),
                            name="receipts_receipt_flush_class_known",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(
                                models.Q(("caused_by", models.F("id")), _negated=True),
                                models.Q(("pairs_with", models.F("id")), _negated=True),
                            ),
                            name="receipts_receipt_not_its_own_cause",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(
                                models.Q(("caused_by", None), ("caused_by_ref__isnull", False), _connector="OR"),
                                models.Q(("pairs_with", None), ("pairs_with_ref__isnull", False), _connector="OR"),
                            ),
                            name="receipts_receipt_link_has_a_reference",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("surface__in", ["inbox", "ledger", "remote"])),
                            name="receipts_receipt_surface_known",
                        ),
                    ],
                    "indexes": [
                        models.Index(
                            condition=models.Q(("caused_by__isnull", False)),
                            fields=["caused_by"],
                            name="receipts_receipt_by_cause",
                        ),
                        models.Index(
                            condition=models.Q(("pairs_with__isnull", False)),
                            fields=["pairs_with"],
                            name="receipts_receipt_by_pair",
                        ),
                        models.Index(
                            condition=models.Q(("caused_by", None), ("caused_by_ref__isnull", False)),
                            fields=["tenant", "caused_by_ref"],
                            name="receipts_receipt_no_cause_yet",
                        ),
                        models.Index(
                            condition=models.Q(("pairs_with", None), ("pairs_with_ref__isnull", False)),
                            fields=["tenant", "pairs_with_ref"],
                            name="receipts_receipt_no_pair_yet",
                        ),
                        models.Index(
                            condition=models.Q(("pruned_at", None), ("surface", "inbox")),
                            fields=["recipient", "source_system", "id"],
                            name="receipts_receipt_of_source",
                        ),
                    ],
                },
            ),
            migrations.CreateModel(
                name="ReceiptKey",
                fields=[
                    id_field(),
                    ("source_system", models.CharField(max_length=50)),
                    ("key_digest", models.BinaryField(max_length=32)),
                    ("content_digest", models.BinaryField(max_length=32)),
                    ("receipt_pk", models.BigIntegerField()),
                    ("receipt_id", models.CharField(max_length=100)),
                    ("uuid", models.UUIDField()),
                    ("created_at", models.DateTimeField()),
                    tenant_field(),
                ],
                options={
                    "constraints": [
                        models.UniqueConstraint(
                            fields=("tenant", "source_system", "key_digest"), name="receipts_receiptkey_used_once"
                        )
                    ],
                },
            ),
            migrations.CreateModel(
                name="Obligation",
                fields=[
                    (
                        "receipt",
                        models.OneToOneField(
                            db_constraint=False,
                            on_delete=django.db.models.deletion.CASCADE,
                            primary_key=True,
                            related_name="obligation",
                            serialize=False,
                            to="receipts.receipt",
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
                    tenant_field(),
                ],
                options={
                    "constraints": [
                        models.CheckConstraint(
                            condition=models.Q(("closed_by", None), ("closed_at__isnull", False), _connector="OR"),
                            name="receipts_obligation_closer_has_a_time",
                        )
                    ],
                    "indexes": [
                        models.Index(
                            condition=models.Q(("closed_at", None)),
                            fields=["tenant", "debtor", "receipt"],
                            name="receipts_obligation_owed",
                        ),
                        models.Index(
                            condition=models.Q(("closed_at", None)),
                            fields=["tenant", "creditor", "receipt"],
                            name="receipts_obligation_awaited",
                        ),
                        models.Index(
                            condition=models.Q(("closed_by__isnull", False)),
                            fields=["closed_by"],
                            name="receipts_obligation_by_closer",
                        ),
                    ],
                },
            ),
        ),
        *(protect(f"receipts_{name}") for name in ("receipt", "receiptkey", "obligation")),
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
