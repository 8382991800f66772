import datetime
from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models
from django.db.models.functions import Now

from apps.core.rls import immutable, protect
from apps.core.tables import CreateModels

# Room in each page for new versions of its rows; manifests, which no heartbeat changes, are stored out of line.
IN_PLACE = "alter table workers_worker set (fillfactor = 70, toast_tuple_target = 256)"
IN_PLACE_BACK = "alter table workers_worker reset (fillfactor, toast_tuple_target)"

TIERS = ["trusted", "verified", "sandbox", "untrusted"]
TIER_CHOICES = [(tier, tier.title()) for tier in TIERS]
STATES = ["ready", "degraded", "maintenance", "offline", "quarantined"]
STATE_CHOICES = [(state, state.title()) for state in STATES]


def _id() -> Any:
    return models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")


def _tenant() -> Any:
    return _to("principals.tenant", editable=False, db_constraint=False)


def _to(model: str, *, related_name: str = "+", **options: Any) -> Any:
    given = {"db_index": False, "on_delete": models.PROTECT, "related_name": related_name, **options}
    return models.ForeignKey(to=model, **given)


class Migration(migrations.Migration):
    initial = True

    dependencies = [("principals", "0001_initial")]

    operations = [
        CreateModels(
            migrations.CreateModel(
                name="Registry",
                fields=[
                    ("id", _id()),
                    ("tenant", _tenant()),
                    ("epoch", models.BigIntegerField(default=0)),
                    ("history_epoch", models.BigIntegerField(default=0)),
                ],
                options={
                    "verbose_name_plural": "registries",
                    "constraints": [models.UniqueConstraint(fields=("tenant",), name="workers_registry_one_a_tenant")],
                },
            ),
            migrations.CreateModel(
                name="SigningKey",
                fields=[
                    ("id", _id()),
                    ("tenant", _tenant()),
                    ("key_id", models.CharField(max_length=100)),
                    ("public_key", models.CharField(max_length=200)),
                    ("ceiling", models.CharField(choices=TIER_CHOICES, max_length=10)),
                    ("enrolled_at", models.DateTimeField()),
                    ("revoked_at", models.DateTimeField(null=True)),
                ],
                options={
                    "permissions": [("operate_signingkey", "Can enroll and revoke keys of MCP workers")],
                    "constraints": [
                        models.UniqueConstraint(fields=("tenant", "key_id"), name="workers_signingkey_id_once"),
                        models.CheckConstraint(
                            condition=models.Q(("ceiling__in", TIERS)), name="workers_signingkey_ceiling_known"
                        ),
                    ],
                },
            ),
            migrations.CreateModel(
                name="Worker",
                fields=[
                    ("id", _id()),
                    ("tenant", _tenant()),
                    ("worker_id", models.CharField(max_length=100)),
                    ("principal", _to("principals.principal", help_text="Registered it, and may speak for it.")),
                    ("endpoint", models.CharField(max_length=2000)),
                    ("capabilities", ArrayField(base_field=models.CharField(max_length=100), default=list, size=None)),
                    ("constraints", models.JSONField(default=dict)),
                    ("hints", models.JSONField(default=dict)),
                    ("manifest", models.JSONField(help_text="The registration as it came, signature included.")),
                    ("claimed_tier", models.CharField(choices=TIER_CHOICES, max_length=10)),
                    ("effective_tier", models.CharField(choices=TIER_CHOICES, max_length=10)),
                    ("tier_reason", models.CharField(max_length=300)),
                    (
                        "approved_at",
                        models.DateTimeField(help_text="When an operator last approved a tool of it.", null=True),
                    ),
                    ("signing_key", _to("workers.signingkey", null=True, related_name="workers")),
                    (
                        "signed_at",
                        models.DateTimeField(help_text="When the latest accepted signature was made.", null=True),
                    ),
                    (
                        "trust_ends_at",
                        models.DateTimeField(
                            help_text="End of the signature. The worker registers again to keep its trust.", null=True
                        ),
                    ),
                    (
                        "void_until",
                        models.DateTimeField(help_text="Signatures made up to this moment are refused.", null=True),
                    ),
                    ("state", models.CharField(choices=STATE_CHOICES, default="ready", max_length=12)),
                    ("current_load", models.FloatField(default=0)),
                    ("available", models.BooleanField(default=True)),
                    (
                        "beats",
                        models.BooleanField(
                            default=True,
                            help_text="It sends heartbeats. A discovered worker that sends none is only probed.",
                        ),
                    ),
                    (
                        "reported",
                        models.CharField(
                            choices=STATE_CHOICES,
                            default="ready",
                            help_text="The state that its last heartbeat reported.",
                            max_length=12,
                        ),
                    ),
                    ("last_heartbeat_at", models.DateTimeField()),
                    (
                        "reach",
                        models.CharField(
                            choices=[("unknown", "not probed yet"), ("up", "Up"), ("down", "Down")],
                            default="unknown",
                            max_length=8,
                        ),
                    ),
                    (
                        "probes_against",
                        models.SmallIntegerField(default=0, help_text="Probes in a row that contradict `reach`."),
                    ),
                    ("probe_at", models.DateTimeField(db_default=Now(), help_text="Time of the next probe.")),
                    ("probe_fencing_token", models.BigIntegerField(default=0)),
                    ("probed_at", models.DateTimeField(null=True)),
                    ("probe_fault", models.CharField(max_length=300, null=True)),
                    (
                        "drift",
                        models.CharField(
                            help_text="The difference of its tools from its manifest.", max_length=300, null=True
                        ),
                    ),
                    ("registered_at", models.DateTimeField()),
                    ("unregistered_at", models.DateTimeField(null=True)),
                    (
                        "described_at_epoch",
                        models.BigIntegerField(
                            default=0,
                            help_text="The registry's epoch when its manifest last changed or it was unregistered.",
                        ),
                    ),
                    (
                        "remembered_at_epoch",
                        models.BigIntegerField(
                            default=-1, help_text="The epoch at which memory was last brought up to date with it."
                        ),
                    ),
                ],
                options={
                    "verbose_name": "MCP worker",
                    "permissions": [("operate_worker", "Can quarantine, release and unregister MCP workers")],
                    "indexes": [
                        models.Index(
                            condition=models.Q(
                                ("unregistered_at", None), models.Q(("state", "quarantined"), _negated=True)
                            ),
                            fields=["probe_at"],
                            name="workers_worker_probe",
                        ),
                        models.Index(fields=["tenant", "described_at_epoch"], name="workers_worker_described"),
                        models.Index(
                            condition=models.Q(("remembered_at_epoch__lt", models.F("described_at_epoch"))),
                            fields=["tenant", "id"],
                            name="workers_worker_unremembered",
                        ),
                        models.Index(
                            condition=models.Q(("effective_tier", "untrusted"), _negated=True),
                            fields=["trust_ends_at"],
                            name="workers_worker_lapsing",
                        ),
                    ],
                    "constraints": [
                        models.UniqueConstraint(fields=("tenant", "worker_id"), name="workers_worker_id_once"),
                        models.CheckConstraint(
                            condition=models.Q(("state__in", STATES)), name="workers_worker_state_known"
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("claimed_tier__in", TIERS)), name="workers_worker_claimed_tier_known"
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("effective_tier__in", TIERS)),
                            name="workers_worker_effective_tier_known",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(
                                ("effective_tier", "untrusted"),
                                models.Q(
                                    ("signed_at__isnull", False),
                                    ("signing_key__isnull", False),
                                    ("trust_ends_at__isnull", False),
                                ),
                                _connector="OR",
                            ),
                            name="workers_worker_trust_is_signed",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("current_load__gte", 0), ("current_load__lte", 1)),
                            name="workers_worker_load_is_a_share",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("reach__in", ["unknown", "up", "down"]), ("reported__in", STATES)),
                            name="workers_worker_reach_known",
                        ),
                    ],
                },
            ),
            migrations.CreateModel(
                name="WorkerEvent",
                fields=[
                    ("id", _id()),
                    ("tenant", _tenant()),
                    ("worker", _to("workers.worker", related_name="events")),
                    (
                        "kind",
                        models.CharField(
                            choices=[
                                ("registered", "Registered"),
                                ("replaced", "manifest replaced"),
                                ("trust", "trust changed"),
                                ("state", "state changed"),
                                ("drifted", "tools differ from the manifest"),
                                ("unregistered", "Unregistered"),
                            ],
                            max_length=12,
                        ),
                    ),
                    ("state", models.CharField(choices=STATE_CHOICES, max_length=12)),
                    ("detail", models.CharField(max_length=300)),
                    ("at", models.DateTimeField()),
                ],
                options={
                    "indexes": [models.Index(fields=["tenant", "worker", "-id"], name="workers_workerevent_history")],
                    "constraints": [
                        models.CheckConstraint(
                            condition=models.Q(
                                ("kind__in", ["registered", "replaced", "trust", "state", "drifted", "unregistered"])
                            ),
                            name="workers_workerevent_kind_known",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("state__in", STATES)), name="workers_workerevent_state_known"
                        ),
                    ],
                },
            ),
            migrations.CreateModel(
                name="ToolVersion",
                fields=[
                    ("id", _id()),
                    ("tenant", _tenant()),
                    ("uid", models.CharField(max_length=32)),
                    ("name", models.CharField(max_length=200)),
                    ("description", models.TextField()),
                    ("input_schema", models.JSONField()),
                    ("output_schema", models.JSONField()),
                    ("side_effects", models.JSONField(null=True)),
                    ("effects", ArrayField(base_field=models.CharField(max_length=20), size=None)),
                    ("first_seen_at", models.DateTimeField()),
                ],
                options={
                    "constraints": [
                        models.UniqueConstraint(fields=("tenant", "uid"), name="workers_toolversion_uid_once")
                    ],
                },
            ),
            migrations.CreateModel(
                name="Offer",
                fields=[
                    ("id", _id()),
                    ("tenant", _tenant()),
                    ("worker", _to("workers.worker", related_name="offers")),
                    ("tool", _to("workers.toolversion", related_name="offers")),
                    ("name", models.CharField(max_length=200)),
                    ("offered_at", models.DateTimeField()),
                    ("withdrawn_at", models.DateTimeField(null=True)),
                    (
                        "approved_at",
                        models.DateTimeField(
                            help_text="When an operator approved this version of the tool; it may be used whatever the tier.",
                            null=True,
                        ),
                    ),
                    ("runs", models.BigIntegerField(default=0)),
                    ("successes", models.BigIntegerField(default=0)),
                    ("total_seconds", models.FloatField(default=0)),
                    ("total_cost", models.DecimalField(decimal_places=6, default=0, max_digits=14)),
                    (
                        "recent_seconds",
                        ArrayField(
                            base_field=models.FloatField(),
                            default=list,
                            help_text="Durations of the latest calls, oldest first.",
                            size=None,
                        ),
                    ),
                ],
                options={
                    "constraints": [
                        models.UniqueConstraint(fields=("tenant", "worker", "tool"), name="workers_offer_once"),
                        models.UniqueConstraint(
                            condition=models.Q(("withdrawn_at", None)),
                            fields=("tenant", "worker", "name"),
                            name="workers_offer_one_current_a_name",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("successes__gte", 0), ("successes__lte", models.F("runs"))),
                            name="workers_offer_successes_are_runs",
                        ),
                    ],
                },
            ),
            migrations.CreateModel(
                name="Call",
                fields=[
                    ("id", _id()),
                    ("tenant", _tenant()),
                    ("offer", _to("workers.offer")),
                    ("ok", models.BooleanField()),
                    ("seconds", models.FloatField()),
                    ("cost", models.DecimalField(decimal_places=6, max_digits=14)),
                ],
                options={
                    "abstract": False,
                },
            ),
            migrations.CreateModel(
                name="WorkerSource",
                fields=[
                    ("id", _id()),
                    ("tenant", _tenant()),
                    ("name", models.CharField(max_length=100)),
                    (
                        "kind",
                        models.CharField(
                            choices=[
                                ("pull", "one known MCP endpoint"),
                                ("static", "a YAML file"),
                                ("etcd", "Etcd"),
                                ("consul", "Consul"),
                            ],
                            max_length=8,
                        ),
                    ),
                    ("address", models.CharField(max_length=2000)),
                    (
                        "options",
                        models.JSONField(
                            default=dict,
                            help_text="What to look for there, and defaults for servers without a manifest.",
                        ),
                    ),
                    (
                        "sealed_secret",
                        models.TextField(
                            default="", editable=False, help_text="Password or token for the source, encrypted."
                        ),
                    ),
                    ("principal", _to("principals.principal")),
                    ("enabled", models.BooleanField(default=True)),
                    (
                        "every",
                        models.DurationField(
                            help_text="How often the MCP workers that it lists are asked for their tools."
                        ),
                    ),
                    ("cursor", models.CharField(default="", max_length=100)),
                    ("next_at", models.DateTimeField()),
                    ("fencing_token", models.BigIntegerField(default=0)),
                    ("looked_at", models.DateTimeField(null=True)),
                    ("faults", models.IntegerField(default=0, help_text="Failed looks in a row.")),
                    ("fault", models.CharField(max_length=300, null=True)),
                    ("added_at", models.DateTimeField()),
                ],
                options={
                    "indexes": [
                        models.Index(
                            condition=models.Q(("enabled", True)), fields=["next_at"], name="workers_workersource_next"
                        )
                    ],
                    "constraints": [
                        models.UniqueConstraint(fields=("tenant", "name"), name="workers_workersource_name_once"),
                        models.CheckConstraint(
                            condition=models.Q(("kind__in", ["pull", "static", "etcd", "consul"])),
                            name="workers_workersource_kind_known",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("every__gte", datetime.timedelta(seconds=5))),
                            name="workers_workersource_not_too_often",
                        ),
                    ],
                },
            ),
            migrations.CreateModel(
                name="SourceEntry",
                fields=[
                    ("id", _id()),
                    ("tenant", _tenant()),
                    ("source", _to("workers.workersource", on_delete=models.CASCADE, related_name="entries")),
                    ("key", models.CharField(max_length=500)),
                    (
                        "stated",
                        models.JSONField(help_text="The content of the entry: an endpoint, or a whole manifest."),
                    ),
                    ("worker", _to("workers.worker", null=True, related_name="entries")),
                    ("named_at", models.DateTimeField()),
                    ("next_at", models.DateTimeField()),
                    ("fencing_token", models.BigIntegerField(default=0)),
                    ("asked_at", models.DateTimeField(null=True)),
                    ("faults", models.IntegerField(default=0)),
                    ("fault", models.CharField(max_length=300, null=True)),
                ],
                options={
                    "verbose_name_plural": "source entries",
                    "indexes": [
                        models.Index(fields=["next_at"], name="workers_sourceentry_next"),
                        models.Index(fields=["worker"], name="workers_sourceentry_worker"),
                    ],
                    "constraints": [
                        models.UniqueConstraint(fields=("tenant", "source", "key"), name="workers_sourceentry_key_once")
                    ],
                },
            ),
            migrations.CreateModel(
                name="Allowance",
                fields=[
                    ("id", _id()),
                    ("tenant", _tenant()),
                    ("worker", _to("workers.worker")),
                    ("taken_until", models.DateTimeField()),
                ],
                options={
                    "constraints": [
                        models.UniqueConstraint(fields=("tenant", "worker"), name="workers_allowance_one_a_worker")
                    ],
                },
            ),
        ),
        *(
            protect(f"workers_{name}")
            for name in (
                "registry",
                "signingkey",
                "worker",
                "workerevent",
                "toolversion",
                "offer",
                "call",
                "workersource",
                "sourceentry",
                "allowance",
            )
        ),
        immutable("workers_workerevent"),
        immutable("workers_toolversion"),
        migrations.RunSQL(IN_PLACE, IN_PLACE_BACK),
    ]
