import django.db.models.deletion
from django.db import migrations, models

from apps.core.rls import immutable, kept, protect
from apps.core.tables import CreateModels

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
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
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
                    (
                        "caused_by",
                        models.ForeignKey(
                            db_index=False,
                            null=True,
                            on_delete=django.db.models.deletion.SET_NULL,
                            related_name="consequences",
                            to="receipts.receipt",
                        ),
                    ),
                    (
                        "pairs_with",
                        models.ForeignKey(
                            db_index=False,
                            null=True,
                            on_delete=django.db.models.deletion.SET_NULL,
                            related_name="pairs",
                            to="receipts.receipt",
                        ),
                    ),
                    (
                        "poster",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="posted",
                            to="principals.principal",
                        ),
                    ),
                    (
                        "recipient",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="received",
                            to="principals.principal",
                        ),
                    ),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
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
                            name="receipts_receipt_dangling",
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
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("source_system", models.CharField(max_length=50)),
                    ("key_digest", models.BinaryField(max_length=32)),
                    ("content_digest", models.BinaryField(max_length=32)),
                    ("receipt_pk", models.BigIntegerField()),
                    ("receipt_id", models.CharField(max_length=100)),
                    ("uuid", models.UUIDField()),
                    ("created_at", models.DateTimeField()),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
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
                            on_delete=django.db.models.deletion.CASCADE,
                            primary_key=True,
                            related_name="obligation",
                            serialize=False,
                            to="receipts.receipt",
                        ),
                    ),
                    ("opened_at", models.DateTimeField()),
                    ("closed_at", models.DateTimeField(null=True)),
                    (
                        "closed_by",
                        models.ForeignKey(
                            db_index=False,
                            null=True,
                            on_delete=django.db.models.deletion.SET_NULL,
                            related_name="closed_obligations",
                            to="receipts.receipt",
                        ),
                    ),
                    (
                        "creditor",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="awaits",
                            to="principals.principal",
                        ),
                    ),
                    (
                        "debtor",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="owes",
                            to="principals.principal",
                        ),
                    ),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
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
            migrations.CreateModel(
                name="UnmatchedCloser",
                fields=[
                    (
                        "receipt",
                        models.OneToOneField(
                            on_delete=django.db.models.deletion.CASCADE,
                            primary_key=True,
                            related_name="unmatched",
                            serialize=False,
                            to="receipts.receipt",
                        ),
                    ),
                    ("reference", models.CharField(max_length=100)),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                ],
                options={
                    "indexes": [
                        models.Index(fields=["tenant", "reference", "receipt"], name="receipts_unmatched_by_ref")
                    ],
                },
            ),
            migrations.CreateModel(
                name="Arrival",
                fields=[
                    (
                        "receipt",
                        models.OneToOneField(
                            on_delete=django.db.models.deletion.CASCADE,
                            primary_key=True,
                            related_name="arrival",
                            serialize=False,
                            to="receipts.receipt",
                        ),
                    ),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                ],
                options={
                    "abstract": False,
                },
            ),
            migrations.CreateModel(
                name="RemoteTarget",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("name", models.CharField(max_length=50)),
                    ("base_url", models.CharField(max_length=500)),
                    (
                        "door",
                        models.CharField(
                            choices=[("inbox", "Inbox"), ("universal", "Universal"), ("gatehouse", "Gatehouse")],
                            max_length=9,
                        ),
                    ),
                    (
                        "known_as",
                        models.CharField(
                            help_text="The source system that it knows this deployment by; none: each its own.",
                            max_length=50,
                            null=True,
                        ),
                    ),
                    ("sealed_token", models.TextField(editable=False)),
                    ("timeout_seconds", models.PositiveSmallIntegerField(default=5)),
                    (
                        "breaker",
                        models.CharField(
                            choices=[("closed", "Closed"), ("open", "Open"), ("half_open", "Half Open")],
                            default="closed",
                            max_length=9,
                        ),
                    ),
                    ("failures_in_a_row", models.PositiveIntegerField(default=0)),
                    ("retry_at", models.DateTimeField(null=True)),
                    ("delivered_count", models.PositiveBigIntegerField(default=0)),
                    ("delivery_seconds", models.FloatField(default=0, help_text="From posting to delivery, in sum.")),
                    ("failed_count", models.PositiveBigIntegerField(default=0)),
                    ("dead_count", models.PositiveBigIntegerField(default=0)),
                    ("created_at", models.DateTimeField()),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                    ("announced_until", models.DateTimeField(null=True)),
                    ("busy_until", models.DateTimeField(null=True)),
                ],
                options={
                    "permissions": [("replay_remotetarget", "Can replay dead letters")],
                    "constraints": [
                        models.UniqueConstraint(fields=("tenant", "name"), name="receipts_remotetarget_name_once"),
                        models.CheckConstraint(
                            condition=models.Q(("door__in", ["inbox", "universal", "gatehouse"])),
                            name="receipts_remotetarget_door_known",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("timeout_seconds__gte", 1), ("timeout_seconds__lte", 60)),
                            name="receipts_remotetarget_timeout_in_bounds",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(
                                models.Q(("breaker", "closed"), ("retry_at", None)),
                                models.Q(("breaker__in", ["open", "half_open"]), ("retry_at__isnull", False)),
                                _connector="OR",
                            ),
                            name="receipts_remotetarget_closed_or_has_a_retry",
                        ),
                    ],
                },
            ),
            migrations.CreateModel(
                name="Residence",
                fields=[
                    (
                        "principal",
                        models.OneToOneField(
                            on_delete=django.db.models.deletion.PROTECT,
                            primary_key=True,
                            related_name="residence",
                            serialize=False,
                            to="principals.principal",
                        ),
                    ),
                    ("name_there", models.CharField(max_length=50)),
                    (
                        "target",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="residents",
                            to="receipts.remotetarget",
                        ),
                    ),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                ],
                options={
                    "abstract": False,
                },
            ),
            migrations.CreateModel(
                name="Letter",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("recipient_name", models.CharField(max_length=50)),
                    (
                        "state",
                        models.CharField(
                            choices=[("pending", "Pending"), ("delivered", "Delivered"), ("dead", "Dead")],
                            default="pending",
                            max_length=9,
                        ),
                    ),
                    ("due_at", models.DateTimeField(null=True)),
                    ("attempts", models.PositiveIntegerField(default=0)),
                    ("fence", models.PositiveIntegerField(default=0)),
                    ("failure", models.CharField(max_length=50, null=True)),
                    ("said", models.CharField(max_length=600, null=True)),
                    ("created_at", models.DateTimeField()),
                    ("settled_at", models.DateTimeField(null=True)),
                    ("remote_receipt_id", models.CharField(max_length=100, null=True)),
                    ("remote_uuid", models.UUIDField(null=True)),
                    (
                        "receipt",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="letters",
                            to="receipts.receipt",
                        ),
                    ),
                    (
                        "tenant",
                        models.ForeignKey(
                            db_index=False,
                            editable=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="principals.tenant",
                        ),
                    ),
                    (
                        "target",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="letters",
                            to="receipts.remotetarget",
                        ),
                    ),
                    (
                        "claimed",
                        models.BooleanField(
                            db_default=False, default=False, help_text="A call is under way, or was lost."
                        ),
                    ),
                    (
                        "sent_as",
                        models.CharField(
                            help_text="The source system that it is sent under; empty: its own; none: not settled.",
                            max_length=50,
                            null=True,
                        ),
                    ),
                ],
                options={
                    "indexes": [
                        models.Index(
                            condition=models.Q(("state", "pending")),
                            fields=["target", "due_at", "id"],
                            name="receipts_letter_due",
                        ),
                        models.Index(fields=["target", "state", "id"], name="receipts_letter_by_state"),
                        models.Index(fields=["receipt"], name="receipts_letter_by_receipt"),
                    ],
                    "constraints": [
                        models.UniqueConstraint(
                            fields=("tenant", "receipt", "target"), name="receipts_letter_once_per_target"
                        ),
                        models.CheckConstraint(
                            condition=models.Q(
                                models.Q(("due_at__isnull", False), ("settled_at", None), ("state", "pending")),
                                models.Q(("due_at", None), ("settled_at__isnull", False), ("state", "delivered")),
                                models.Q(
                                    ("due_at", None),
                                    ("failure__isnull", False),
                                    ("settled_at__isnull", False),
                                    ("state", "dead"),
                                ),
                                _connector="OR",
                            ),
                            name="receipts_letter_due_iff_pending",
                        ),
                    ],
                },
            ),
        ),
        *(
            protect(f"receipts_{name}")
            for name in (
                "receipt",
                "receiptkey",
                "obligation",
                "unmatchedcloser",
                "arrival",
                "remotetarget",
                "residence",
                "letter",
            )
        ),
        immutable(
            "receipts_receipt",
            except_columns=("caused_by_id", "pairs_with_id"),
            redactable=(*_SAID, "redacted_at"),
            prunable=(*_SAID, "pruned_at"),
        ),
        immutable("receipts_receiptkey"),
        immutable(
            "receipts_letter",
            except_columns=(
                "state",
                "due_at",
                "claimed",
                "sent_as",
                "attempts",
                "fence",
                "failure",
                "said",
                "settled_at",
                "remote_receipt_id",
                "remote_uuid",
            ),
        ),
        kept("receipts_receipt"),
        kept("receipts_receiptkey"),
    ]
