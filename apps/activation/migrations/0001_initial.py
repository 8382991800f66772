import datetime

import django.db.models.deletion
from django.db import migrations, models

from apps.core.rls import protect
from apps.core.tables import CreateModels


class Migration(migrations.Migration):
    initial = True

    dependencies = [("principals", "0001_initial")]

    operations = [
        CreateModels(
            migrations.CreateModel(
                name="Target",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("kind", models.CharField(choices=[("webhook", "Webhook")], default="webhook", max_length=10)),
                    ("url", models.CharField(max_length=500)),
                    (
                        "notify_lease",
                        models.DurationField(
                            default=datetime.timedelta(seconds=600),
                            help_text="After a wake the target is left alone for so long, or until all that it was woken for is acked.",
                        ),
                    ),
                    (
                        "min_unacked",
                        models.IntegerField(
                            default=1, help_text="Fewer unacked receipts than this are not worth a wake."
                        ),
                    ),
                    (
                        "with_titles",
                        models.BooleanField(
                            default=False, help_text="A wake names titles and sources, not refs alone."
                        ),
                    ),
                    (
                        "state",
                        models.CharField(
                            choices=[("enabled", "Enabled"), ("stopped", "Stopped")], default="enabled", max_length=10
                        ),
                    ),
                    ("stopped_reason", models.CharField(max_length=200, null=True)),
                    ("stopped_at", models.DateTimeField(null=True)),
                    ("secret", models.TextField()),
                    ("former_secret", models.TextField(null=True)),
                    ("former_secret_until", models.DateTimeField(null=True)),
                    ("created_at", models.DateTimeField()),
                    (
                        "principal",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="targets",
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
                    "permissions": [("operate_target", "Can stop and resume targets")],
                    "constraints": [
                        models.UniqueConstraint(
                            fields=("tenant", "principal", "url"), name="activation_target_url_once"
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("kind__in", ["webhook"])), name="activation_target_kind_known"
                        ),
                        models.CheckConstraint(
                            condition=models.Q(
                                models.Q(("state", "enabled"), ("stopped_at", None), ("stopped_reason", None)),
                                models.Q(
                                    ("state", "stopped"),
                                    ("stopped_at__isnull", False),
                                    ("stopped_reason__isnull", False),
                                ),
                                _connector="OR",
                            ),
                            name="activation_target_stopped_has_a_reason",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(
                                ("min_unacked__gte", 1),
                                ("notify_lease__range", (datetime.timedelta(0), datetime.timedelta(days=7))),
                            ),
                            name="activation_target_policy_possible",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(
                                models.Q(("former_secret", None), ("former_secret_until", None)),
                                models.Q(("former_secret__isnull", False), ("former_secret_until__isnull", False)),
                                _connector="OR",
                            ),
                            name="activation_target_former_secret_has_an_end",
                        ),
                    ],
                },
            ),
            migrations.CreateModel(
                name="Dispatch",
                fields=[
                    (
                        "target",
                        models.OneToOneField(
                            on_delete=django.db.models.deletion.CASCADE,
                            primary_key=True,
                            related_name="dispatch",
                            serialize=False,
                            to="activation.target",
                        ),
                    ),
                    ("covered_seq", models.BigIntegerField(default=0)),
                    ("fence", models.BigIntegerField(default=0)),
                    ("attempts", models.IntegerField(default=0, help_text="Failures since the last wake.")),
                    ("next_at", models.DateTimeField()),
                    ("woken_at", models.DateTimeField(null=True)),
                    ("tried_at", models.DateTimeField(null=True)),
                    ("result", models.CharField(max_length=200, null=True)),
                    ("sent", models.BigIntegerField(default=0)),
                    ("failed", models.BigIntegerField(default=0)),
                    (
                        "wasted",
                        models.BigIntegerField(
                            default=0,
                            help_text="Wakes for which everything had been acked by requests that began before the call.",
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
                    ("announced_until", models.DateTimeField(null=True)),
                    ("busy_until", models.DateTimeField(null=True)),
                ],
                options={
                    "verbose_name_plural": "dispatches",
                    "constraints": [
                        models.CheckConstraint(
                            condition=models.Q(
                                ("attempts__gte", 0),
                                ("covered_seq__gte", 0),
                                ("failed__gte", 0),
                                ("fence__gte", 0),
                                ("sent__gte", 0),
                                ("wasted__range", (0, models.F("sent"))),
                            ),
                            name="activation_dispatch_counts_from_zero",
                        )
                    ],
                    "indexes": [
                        models.Index(fields=["next_at"], name="activation_dispatch_next"),
                        models.Index(
                            condition=models.Q(("announced_until__isnull", False)),
                            fields=["target"],
                            name="activation_dispatch_waiting",
                        ),
                        models.Index(fields=["busy_until"], name="activation_dispatch_busy"),
                    ],
                },
            ),
        ),
        *(protect(f"activation_{name}") for name in ("target", "dispatch")),
    ]
