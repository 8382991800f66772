from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models
from django.db.models import F, Q
from django.db.models.functions import Now

from apps.core.rls import immutable
from apps.core.tables import CreateModels, reference, table

# Room in each page for new versions of its rows; manifests, which no heartbeat changes, are stored out of line.
IN_PLACE = "alter table workers_worker set (fillfactor = 70, toast_tuple_target = 256)"

TIERS = ["trusted", "verified", "sandbox", "untrusted"]
STATES = ["ready", "degraded", "maintenance", "offline", "quarantined"]


class Migration(migrations.Migration):
    initial = True

    dependencies = [("principals", "0001_initial")]

    operations = [
        CreateModels(
            table(
                "Registry",
                ("epoch", models.BigIntegerField(default=0)),
                ("history_epoch", models.BigIntegerField(default=0)),
                verbose_name_plural="registries",
                constraints=[
                    models.UniqueConstraint(name="workers_registry_one_a_tenant", fields=["tenant"]),
                ],
            ),
            table(
                "SigningKey",
                ("key_id", models.CharField(max_length=100)),
                ("public_key", models.CharField(max_length=200)),
                ("ceiling", models.CharField(max_length=10)),
                ("enrolled_at", models.DateTimeField()),
                ("revoked_at", models.DateTimeField(null=True)),
                permissions=[("operate_signingkey", "Can enroll and revoke keys of MCP workers")],
                constraints=[
                    models.UniqueConstraint(name="workers_signingkey_id_once", fields=["tenant", "key_id"]),
                ],
            ),
            table(
                "Worker",
                ("worker_id", models.CharField(max_length=100)),
                reference("principal", "principals.principal"),
                ("endpoint", models.CharField(max_length=2000)),
                ("capabilities", ArrayField(models.CharField(max_length=100), default=list)),
                ("constraints", models.JSONField(default=dict)),
                ("hints", models.JSONField(default=dict)),
                ("manifest", models.JSONField()),
                ("effective_tier", models.CharField(max_length=10)),
                ("tier_reason", models.CharField(max_length=300)),
                ("approved_at", models.DateTimeField(null=True)),
                reference("signing_key", "workers.signingkey", "workers", null=True),
                ("signed_at", models.DateTimeField(null=True)),
                ("trust_ends_at", models.DateTimeField(null=True)),
                ("void_until", models.DateTimeField(null=True)),
                ("state", models.CharField(max_length=12, default="ready")),
                ("current_load", models.FloatField(default=0)),
                ("available", models.BooleanField(default=True)),
                ("beats", models.BooleanField(default=True)),
                ("reported", models.CharField(max_length=12, default="ready")),
                ("last_heartbeat_at", models.DateTimeField()),
                ("reach", models.CharField(max_length=8, default="unknown")),
                ("probes_against", models.SmallIntegerField(default=0)),
                ("probe_at", models.DateTimeField(db_default=Now())),
                ("probed_at", models.DateTimeField(null=True)),
                ("probe_fault", models.CharField(max_length=300, null=True)),
                ("drift", models.CharField(max_length=300, null=True)),
                ("registered_at", models.DateTimeField()),
                ("unregistered_at", models.DateTimeField(null=True)),
                ("described_at_epoch", models.BigIntegerField(default=0)),
                ("remembered_at_epoch", models.BigIntegerField(default=-1)),
                verbose_name="MCP worker",
                permissions=[("operate_worker", "Can quarantine, release and unregister MCP workers")],
                indexes=[
                    models.Index(
                        name="workers_worker_probe",
                        fields=["probe_at"],
                        condition=Q(unregistered_at=None) & ~Q(state="quarantined"),
                    ),
                    models.Index(
                        name="workers_worker_unremembered",
                        fields=["tenant", "id"],
                        condition=Q(remembered_at_epoch__lt=F("described_at_epoch")),
                    ),
                    models.Index(
                        name="workers_worker_lapsing",
                        fields=["trust_ends_at"],
                        condition=~Q(effective_tier="untrusted"),
                    ),
                ],
                constraints=[
                    models.UniqueConstraint(name="workers_worker_id_once", fields=["tenant", "worker_id"]),
                    models.CheckConstraint(name="workers_worker_state_known", condition=Q(state__in=STATES)),
                    models.CheckConstraint(
                        name="workers_worker_effective_tier_known", condition=Q(effective_tier__in=TIERS)
                    ),
                    models.CheckConstraint(
                        name="workers_worker_trust_is_signed",
                        condition=Q(effective_tier="untrusted")
                        | Q(signed_at__isnull=False, signing_key__isnull=False, trust_ends_at__isnull=False),
                    ),
                    models.CheckConstraint(
                        name="workers_worker_reach_known",
                        condition=Q(reach__in=["unknown", "up", "down"], reported__in=STATES),
                    ),
                ],
            ),
            table(
                "WorkerEvent",
                reference("worker", "workers.worker", "events"),
                ("kind", models.CharField(max_length=12)),
                ("state", models.CharField(max_length=12)),
                ("detail", models.CharField(max_length=300)),
                ("at", models.DateTimeField()),
                indexes=[
                    models.Index(name="workers_workerevent_history", fields=["tenant", "worker", "-id"]),
                ],
            ),
            table(
                "ToolVersion",
                ("uid", models.CharField(max_length=32)),
                ("name", models.CharField(max_length=200)),
                ("description", models.TextField()),
                ("input_schema", models.JSONField()),
                ("output_schema", models.JSONField()),
                ("side_effects", models.JSONField(null=True)),
                ("first_seen_at", models.DateTimeField()),
                constraints=[
                    models.UniqueConstraint(name="workers_toolversion_uid_once", fields=["tenant", "uid"]),
                ],
            ),
            table(
                "Offer",
                reference("worker", "workers.worker", "offers"),
                reference("tool", "workers.toolversion", "offers"),
                ("name", models.CharField(max_length=200)),
                ("offered_at", models.DateTimeField()),
                ("withdrawn_at", models.DateTimeField(null=True)),
                ("approved_at", models.DateTimeField(null=True)),
                ("runs", models.BigIntegerField(default=0)),
                ("successes", models.BigIntegerField(default=0)),
                ("total_cost", models.DecimalField(default=0, max_digits=14, decimal_places=6)),
                ("recent_seconds", ArrayField(models.FloatField(), default=list)),
                constraints=[
                    models.UniqueConstraint(name="workers_offer_once", fields=["tenant", "worker", "tool"]),
                    models.UniqueConstraint(
                        name="workers_offer_one_current_a_name",
                        fields=["tenant", "worker", "name"],
                        condition=Q(withdrawn_at=None),
                    ),
                    models.CheckConstraint(
                        name="workers_offer_successes_are_runs",
                        condition=Q(successes__gte=0, successes__lte=F("runs")),
                    ),
                ],
            ),
            table(
                "Call",
                reference("offer", "workers.offer"),
                ("ok", models.BooleanField()),
                ("seconds", models.FloatField()),
                ("cost", models.DecimalField(max_digits=14, decimal_places=6)),
            ),
            table(
                "WorkerSource",
                ("name", models.CharField(max_length=100)),
                ("kind", models.CharField(max_length=8)),
                ("address", models.CharField(max_length=2000)),
                ("options", models.JSONField(default=dict)),
                ("sealed_secret", models.TextField(default="", editable=False)),
                reference("principal", "principals.principal"),
                ("enabled", models.BooleanField(default=True)),
                ("every", models.DurationField()),
                ("next_at", models.DateTimeField()),
                ("looked_at", models.DateTimeField(null=True)),
                ("faults", models.IntegerField(default=0)),
                ("fault", models.CharField(max_length=300, null=True)),
                indexes=[
                    models.Index(name="workers_workersource_next", fields=["next_at"], condition=Q(enabled=True)),
                ],
                constraints=[
                    models.UniqueConstraint(name="workers_workersource_name_once", fields=["tenant", "name"]),
                ],
            ),
            table(
                "SourceEntry",
                reference("source", "workers.workersource", "entries", on_delete=models.CASCADE),
                ("key", models.CharField(max_length=500)),
                ("stated", models.JSONField()),
                reference("worker", "workers.worker", "entries", null=True),
                ("named_at", models.DateTimeField()),
                ("next_at", models.DateTimeField()),
                ("asked_at", models.DateTimeField(null=True)),
                ("faults", models.IntegerField(default=0)),
                ("fault", models.CharField(max_length=300, null=True)),
                verbose_name_plural="source entries",
                indexes=[
                    models.Index(name="workers_sourceentry_next", fields=["next_at"]),
                    models.Index(name="workers_sourceentry_worker", fields=["worker"]),
                ],
                constraints=[
                    models.UniqueConstraint(name="workers_sourceentry_key_once", fields=["tenant", "source", "key"]),
                ],
            ),
            table(
                "Allowance",
                reference("worker", "workers.worker"),
                ("taken_until", models.DateTimeField()),
                constraints=[
                    models.UniqueConstraint(name="workers_allowance_one_a_worker", fields=["tenant", "worker"]),
                ],
            ),
        ),
        immutable("workers_workerevent"),
        immutable("workers_toolversion"),
        migrations.RunSQL(IN_PLACE),
    ]
