import datetime

import django.db.models.deletion
from django.db import migrations, models

from apps.core.rls import immutable, protect
from apps.core.tables import reference, tenant_field


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("principals", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="Target",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("kind", models.CharField(choices=[("webhook", "Webhook"), ("remote", "Remote")], max_length=10)),
                ("name", models.CharField(max_length=50, null=True)),
                ("url", models.CharField(max_length=500)),
                ("secret", models.TextField(editable=False)),
                ("former_secret", models.TextField(editable=False, null=True)),
                ("former_secret_until", models.DateTimeField(null=True)),
                ("timeout_seconds", models.PositiveSmallIntegerField(default=10)),
                (
                    "endpoint",
                    models.CharField(
                        choices=[("inbox", "Inbox"), ("universal", "Universal"), ("gatehouse", "Gatehouse")],
                        max_length=9,
                        null=True,
                    ),
                ),
                (
                    "known_as",
                    models.CharField(
                        help_text="The source system that it knows this deployment by; empty: each its own.",
                        max_length=50,
                        null=True,
                    ),
                ),
                (
                    "notify_lease",
                    models.DurationField(
                        default=datetime.timedelta(seconds=600),
                        help_text="After a wake the target is left alone for this time, or until everything it was woken for is acked.",
                    ),
                ),
                (
                    "min_unacked",
                    models.IntegerField(default=1, help_text="Fewer unacked receipts than this wake nobody."),
                ),
                (
                    "with_titles",
                    models.BooleanField(default=False, help_text="A wake names titles and sources, not refs alone."),
                ),
                ("covered_seq", models.BigIntegerField(default=0)),
                ("woken_at", models.DateTimeField(null=True)),
                ("stopped_at", models.DateTimeField(null=True)),
                ("stopped_reason", models.CharField(max_length=200, null=True)),
                ("failures_in_a_row", models.PositiveIntegerField(default=0)),
                ("retry_at", models.DateTimeField(null=True)),
                ("busy_until", models.DateTimeField(null=True)),
                ("result", models.CharField(help_text="Of the last call.", max_length=200, null=True)),
                ("sent", models.PositiveBigIntegerField(default=0)),
                ("failed", models.PositiveBigIntegerField(default=0)),
                ("dead", models.PositiveBigIntegerField(default=0)),
                (
                    "wasted",
                    models.PositiveBigIntegerField(
                        default=0,
                        help_text="Wakes for which everything had been acked by requests that began before the call.",
                    ),
                ),
                (
                    "delivery_seconds",
                    models.FloatField(default=0, help_text="Sum of the times from creation to delivery."),
                ),
                ("created_at", models.DateTimeField()),
                reference("principal", "principals.principal", "targets", null=True),
                tenant_field(),
            ],
            options={
                "permissions": [("operate_target", "Can stop and resume targets, and replay dead deliveries")],
            },
        ),
        migrations.CreateModel(
            name="RemoteRoute",
            fields=[
                (
                    "principal",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        primary_key=True,
                        related_name="moved_to",
                        serialize=False,
                        to="principals.principal",
                    ),
                ),
                ("remote_name", models.CharField(max_length=50)),
                tenant_field(),
                (
                    "target",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="routes", to="delivery.target"
                    ),
                ),
            ],
            options={
                "abstract": False,
            },
        ),
        migrations.CreateModel(
            name="Delivery",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("object_id", models.BigIntegerField(null=True)),
                ("reference", models.CharField(help_text="The id of the receipt.", max_length=100, null=True)),
                (
                    "recipient",
                    models.CharField(help_text="The recipient's name at the target.", max_length=50, null=True),
                ),
                (
                    "sent_as",
                    models.CharField(
                        help_text="The source system that it is sent under, fixed by the first call; blank: the receipt's own.",
                        max_length=50,
                        null=True,
                    ),
                ),
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
                ("failure", models.CharField(max_length=50, null=True)),
                ("said", models.CharField(max_length=600, null=True)),
                ("remote_id", models.CharField(help_text="What the target calls it.", max_length=100, null=True)),
                ("created_at", models.DateTimeField()),
                ("settled_at", models.DateTimeField(null=True)),
                tenant_field(),
                reference("target", "delivery.target", "deliveries", on_delete=models.CASCADE),
            ],
            options={
                "verbose_name_plural": "deliveries",
            },
        ),
        migrations.AddIndex(
            model_name="target",
            index=models.Index(fields=["busy_until"], name="delivery_target_busy"),
        ),
        migrations.AddConstraint(
            model_name="target",
            constraint=models.UniqueConstraint(fields=("tenant", "principal", "url"), name="delivery_target_url_once"),
        ),
        migrations.AddConstraint(
            model_name="target",
            constraint=models.UniqueConstraint(fields=("tenant", "name"), name="delivery_target_name_once"),
        ),
        migrations.AddConstraint(
            model_name="target",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(
                        ("endpoint", None),
                        ("kind", "webhook"),
                        ("known_as", None),
                        ("name", None),
                        ("principal__isnull", False),
                    ),
                    models.Q(
                        ("endpoint__in", ["inbox", "universal", "gatehouse"]),
                        ("kind", "remote"),
                        ("name__isnull", False),
                        ("principal", None),
                    ),
                    _connector="OR",
                ),
                name="delivery_target_has_what_its_kind_needs",
            ),
        ),
        migrations.AddConstraint(
            model_name="target",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("stopped_at", None), ("stopped_reason", None)),
                    models.Q(("stopped_at__isnull", False), ("stopped_reason__isnull", False)),
                    _connector="OR",
                ),
                name="delivery_target_stopped_has_a_reason",
            ),
        ),
        migrations.AddConstraint(
            model_name="target",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("covered_seq__gte", 0),
                    ("min_unacked__gte", 1),
                    ("timeout_seconds__range", (1, 60)),
                    ("notify_lease__range", (datetime.timedelta(0), datetime.timedelta(days=7))),
                    ("wasted__lte", models.F("sent")),
                ),
                name="delivery_target_numbers_in_bounds",
            ),
        ),
        migrations.AddConstraint(
            model_name="target",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("former_secret", None), ("former_secret_until", None)),
                    models.Q(("former_secret__isnull", False), ("former_secret_until__isnull", False)),
                    _connector="OR",
                ),
                name="delivery_target_former_secret_has_an_end",
            ),
        ),
        migrations.AddIndex(
            model_name="delivery",
            index=models.Index(
                condition=models.Q(("state", "pending")),
                fields=["target", "due_at", "id"],
                name="delivery_delivery_due",
            ),
        ),
        migrations.AddIndex(
            model_name="delivery",
            index=models.Index(fields=["target", "state", "id"], name="delivery_delivery_by_state"),
        ),
        migrations.AddIndex(
            model_name="delivery",
            index=models.Index(
                condition=models.Q(("object_id__isnull", False)),
                fields=["object_id"],
                name="delivery_delivery_by_object",
            ),
        ),
        migrations.AddConstraint(
            model_name="delivery",
            constraint=models.UniqueConstraint(
                fields=("tenant", "object_id", "target"), name="delivery_delivery_once_per_target"
            ),
        ),
        migrations.AddConstraint(
            model_name="delivery",
            constraint=models.UniqueConstraint(
                condition=models.Q(("object_id", None), ("state", "pending")),
                fields=("tenant", "target"),
                name="delivery_delivery_one_wake_at_a_time",
            ),
        ),
        migrations.AddConstraint(
            model_name="delivery",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("due_at__isnull", False), ("settled_at", None), ("state", "pending")),
                    models.Q(("due_at", None), ("settled_at__isnull", False), ("state", "delivered")),
                    models.Q(
                        ("due_at", None), ("failure__isnull", False), ("settled_at__isnull", False), ("state", "dead")
                    ),
                    _connector="OR",
                ),
                name="delivery_delivery_due_iff_pending",
            ),
        ),
        *(protect(f"delivery_{name}") for name in ("target", "delivery", "remoteroute")),
        immutable(
            "delivery_delivery",
            except_columns=(
                "state",
                "due_at",
                "attempts",
                "sent_as",
                "failure",
                "said",
                "settled_at",
                "remote_id",
            ),
        ),
    ]
