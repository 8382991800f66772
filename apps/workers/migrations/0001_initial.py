import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models

from apps.core.rls import immutable, protect


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("principals", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="Offer",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=200)),
                ("offered_at", models.DateTimeField()),
                ("withdrawn_at", models.DateTimeField(null=True)),
                ("runs", models.BigIntegerField(default=0)),
                ("successes", models.BigIntegerField(default=0)),
                ("total_seconds", models.FloatField(default=0)),
                ("total_cost", models.DecimalField(decimal_places=6, default=0, max_digits=14)),
                (
                    "recent_seconds",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.FloatField(),
                        default=list,
                        help_text="Durations of the latest calls, oldest first.",
                        size=None,
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
        ),
        migrations.CreateModel(
            name="Call",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("ok", models.BooleanField()),
                ("seconds", models.FloatField()),
                ("cost", models.DecimalField(decimal_places=6, max_digits=14)),
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
                    "offer",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="workers.offer",
                    ),
                ),
            ],
            options={
                "abstract": False,
            },
        ),
        migrations.CreateModel(
            name="SigningKey",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("key_id", models.CharField(max_length=100)),
                ("public_key", models.CharField(max_length=200)),
                (
                    "ceiling",
                    models.CharField(
                        choices=[
                            ("trusted", "Trusted"),
                            ("verified", "Verified"),
                            ("sandbox", "Sandbox"),
                            ("untrusted", "Untrusted"),
                        ],
                        max_length=10,
                    ),
                ),
                ("enrolled_at", models.DateTimeField()),
                ("revoked_at", models.DateTimeField(null=True)),
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
                    models.UniqueConstraint(fields=("tenant", "key_id"), name="workers_signingkey_id_once"),
                    models.CheckConstraint(
                        condition=models.Q(("ceiling__in", ["trusted", "verified", "sandbox", "untrusted"])),
                        name="workers_signingkey_ceiling_known",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ToolVersion",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("uid", models.CharField(max_length=32)),
                ("name", models.CharField(max_length=200)),
                ("description", models.TextField()),
                ("input_schema", models.JSONField()),
                ("output_schema", models.JSONField()),
                ("side_effects", models.JSONField(null=True)),
                (
                    "effects",
                    django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=20), size=None),
                ),
                ("first_seen_at", models.DateTimeField()),
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
                    models.UniqueConstraint(fields=("tenant", "uid"), name="workers_toolversion_uid_once"),
                ],
            },
        ),
        migrations.AddField(
            model_name="offer",
            name="tool",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="offers",
                to="workers.toolversion",
            ),
        ),
        migrations.CreateModel(
            name="Worker",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("worker_id", models.CharField(max_length=100)),
                ("endpoint", models.CharField(max_length=2000)),
                (
                    "capabilities",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=100), default=list, size=None
                    ),
                ),
                ("constraints", models.JSONField(default=dict)),
                ("hints", models.JSONField(default=dict)),
                ("manifest", models.JSONField(help_text="The registration as it came, signature included.")),
                (
                    "claimed_tier",
                    models.CharField(
                        choices=[
                            ("trusted", "Trusted"),
                            ("verified", "Verified"),
                            ("sandbox", "Sandbox"),
                            ("untrusted", "Untrusted"),
                        ],
                        max_length=10,
                    ),
                ),
                (
                    "effective_tier",
                    models.CharField(
                        choices=[
                            ("trusted", "Trusted"),
                            ("verified", "Verified"),
                            ("sandbox", "Sandbox"),
                            ("untrusted", "Untrusted"),
                        ],
                        max_length=10,
                    ),
                ),
                ("tier_reason", models.CharField(max_length=300)),
                ("signed_at", models.DateTimeField(null=True)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("ready", "Ready"),
                            ("degraded", "Degraded"),
                            ("maintenance", "Maintenance"),
                            ("offline", "Offline"),
                            ("quarantined", "Quarantined"),
                        ],
                        default="ready",
                        max_length=12,
                    ),
                ),
                ("current_load", models.FloatField(default=0)),
                ("available", models.BooleanField(default=True)),
                ("last_heartbeat_at", models.DateTimeField()),
                ("registered_at", models.DateTimeField()),
                ("unregistered_at", models.DateTimeField(null=True)),
                (
                    "principal",
                    models.ForeignKey(
                        db_index=False,
                        help_text="Who registered it and speaks for it.",
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="principals.principal",
                    ),
                ),
                (
                    "signing_key",
                    models.ForeignKey(
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="workers",
                        to="workers.signingkey",
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
                    models.UniqueConstraint(fields=("tenant", "worker_id"), name="workers_worker_id_once"),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("state__in", ["ready", "degraded", "maintenance", "offline", "quarantined"])
                        ),
                        name="workers_worker_state_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("claimed_tier__in", ["trusted", "verified", "sandbox", "untrusted"])),
                        name="workers_worker_claimed_tier_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("effective_tier__in", ["trusted", "verified", "sandbox", "untrusted"])),
                        name="workers_worker_effective_tier_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("effective_tier", "untrusted"),
                            models.Q(("signed_at__isnull", False), ("signing_key__isnull", False)),
                            _connector="OR",
                        ),
                        name="workers_worker_trust_is_signed",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("current_load__gte", 0), ("current_load__lte", 1)),
                        name="workers_worker_load_is_a_share",
                    ),
                ],
                "indexes": [
                    models.Index(
                        condition=models.Q(
                            ("unregistered_at", None),
                            models.Q(("state__in", ["offline", "quarantined"]), _negated=True),
                        ),
                        fields=["last_heartbeat_at"],
                        name="workers_worker_late",
                    ),
                ],
            },
        ),
        migrations.AddField(
            model_name="offer",
            name="worker",
            field=models.ForeignKey(
                db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name="offers", to="workers.worker"
            ),
        ),
        migrations.CreateModel(
            name="WorkerEvent",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("registered", "Registered"),
                            ("replaced", "manifest replaced"),
                            ("state", "state changed"),
                            ("unregistered", "Unregistered"),
                        ],
                        max_length=12,
                    ),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("ready", "Ready"),
                            ("degraded", "Degraded"),
                            ("maintenance", "Maintenance"),
                            ("offline", "Offline"),
                            ("quarantined", "Quarantined"),
                        ],
                        max_length=12,
                    ),
                ),
                ("detail", models.CharField(max_length=300)),
                ("at", models.DateTimeField()),
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
                    "worker",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="events",
                        to="workers.worker",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("kind__in", ["registered", "replaced", "state", "unregistered"])),
                        name="workers_workerevent_kind_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("state__in", ["ready", "degraded", "maintenance", "offline", "quarantined"])
                        ),
                        name="workers_workerevent_state_known",
                    ),
                ],
                "indexes": [
                    models.Index(fields=["tenant", "worker", "-id"], name="workers_workerevent_history"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Registry",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("epoch", models.BigIntegerField(default=0)),
                ("history_epoch", models.BigIntegerField(default=0)),
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
                "verbose_name_plural": "registries",
                "constraints": [models.UniqueConstraint(fields=("tenant",), name="workers_registry_one_a_tenant")],
            },
        ),
        migrations.AddConstraint(
            model_name="offer",
            constraint=models.UniqueConstraint(fields=("tenant", "worker", "tool"), name="workers_offer_once"),
        ),
        migrations.AddConstraint(
            model_name="offer",
            constraint=models.UniqueConstraint(
                condition=models.Q(("withdrawn_at", None)),
                fields=("tenant", "worker", "name"),
                name="workers_offer_one_standing_a_name",
            ),
        ),
        migrations.AddConstraint(
            model_name="offer",
            constraint=models.CheckConstraint(
                condition=models.Q(("successes__gte", 0), ("successes__lte", models.F("runs"))),
                name="workers_offer_successes_are_runs",
            ),
        ),
        *(
            protect(f"workers_{name}")
            for name in ("registry", "signingkey", "worker", "toolversion", "offer", "call", "workerevent")
        ),
        immutable("workers_toolversion"),
        immutable("workers_workerevent"),
    ]
