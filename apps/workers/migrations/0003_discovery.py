import datetime

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

from apps.core.rls import protect


class Migration(migrations.Migration):
    dependencies = [
        ("principals", "0003_retention_of_a_tenant"),
        ("workers", "0002_signatures_end"),
    ]

    operations = [
        migrations.CreateModel(
            name="Place",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("key", models.CharField(max_length=500)),
                ("stated", models.JSONField(help_text="What the source says of it: an endpoint, or a whole manifest.")),
                ("named_at", models.DateTimeField()),
                ("gone_at", models.DateTimeField(null=True)),
                ("next_at", models.DateTimeField()),
                ("fence", models.BigIntegerField(default=0)),
                ("asked_at", models.DateTimeField(null=True)),
                ("faults", models.IntegerField(default=0)),
                ("fault", models.CharField(max_length=300, null=True)),
            ],
        ),
        migrations.CreateModel(
            name="WorkerSource",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
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
                    "settings",
                    models.JSONField(
                        default=dict,
                        help_text="What to look for there, and what is said of a worker that says nothing.",
                    ),
                ),
                ("enabled", models.BooleanField(default=True)),
                ("every", models.DurationField(help_text="How often a place that it names is asked what it offers.")),
                ("cursor", models.CharField(default="", max_length=100)),
                ("next_at", models.DateTimeField()),
                ("fence", models.BigIntegerField(default=0)),
                ("looked_at", models.DateTimeField(null=True)),
                ("faults", models.IntegerField(default=0, help_text="Looks in a row that have failed.")),
                ("fault", models.CharField(max_length=300, null=True)),
                ("added_at", models.DateTimeField()),
            ],
        ),
        migrations.RemoveConstraint(
            model_name="workerevent",
            name="workers_workerevent_kind_known",
        ),
        migrations.AddField(
            model_name="worker",
            name="beats",
            field=models.BooleanField(
                db_default=True,
                default=True,
                help_text="It announces itself and sends heartbeats; one that was found and sends none is probed.",
            ),
        ),
        migrations.AddField(
            model_name="worker",
            name="drift",
            field=models.CharField(
                help_text="What its endpoint offers otherwise than its manifest says.", max_length=300, null=True
            ),
        ),
        migrations.AddField(
            model_name="worker",
            name="probe_at",
            field=models.DateTimeField(
                db_default=django.db.models.functions.datetime.Now(), help_text="When it is probed next."
            ),
        ),
        migrations.AddField(
            model_name="worker",
            name="probe_fault",
            field=models.CharField(max_length=300, null=True),
        ),
        migrations.AddField(
            model_name="worker",
            name="probe_fence",
            field=models.BigIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name="worker",
            name="probed_at",
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name="worker",
            name="probes_against",
            field=models.SmallIntegerField(
                db_default=0, default=0, help_text="Probes in a row that contradict `reach`."
            ),
        ),
        migrations.AddField(
            model_name="worker",
            name="reach",
            field=models.CharField(
                choices=[("unknown", "not probed yet"), ("up", "Up"), ("down", "Down")],
                db_default="unknown",
                default="unknown",
                max_length=8,
            ),
        ),
        migrations.AddField(
            model_name="worker",
            name="reported",
            field=models.CharField(
                choices=[
                    ("ready", "Ready"),
                    ("degraded", "Degraded"),
                    ("maintenance", "Maintenance"),
                    ("offline", "Offline"),
                    ("quarantined", "Quarantined"),
                ],
                db_default="ready",
                default="ready",
                help_text="How it says that it is, whatever else is known.",
                max_length=12,
            ),
        ),
        migrations.AlterField(
            model_name="workerevent",
            name="kind",
            field=models.CharField(
                choices=[
                    ("registered", "Registered"),
                    ("replaced", "manifest replaced"),
                    ("trust", "trust changed"),
                    ("state", "state changed"),
                    ("drifted", "offers other than its manifest says"),
                    ("unregistered", "Unregistered"),
                ],
                max_length=12,
            ),
        ),
        migrations.AddIndex(
            model_name="worker",
            index=models.Index(
                condition=models.Q(("unregistered_at", None), models.Q(("state", "quarantined"), _negated=True)),
                fields=["probe_at"],
                name="workers_worker_probe",
            ),
        ),
        migrations.AddConstraint(
            model_name="worker",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("reach__in", ["unknown", "up", "down"]),
                    ("reported__in", ["ready", "degraded", "maintenance", "offline", "quarantined"]),
                ),
                name="workers_worker_reach_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="workerevent",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("kind__in", ["registered", "replaced", "trust", "state", "drifted", "unregistered"])
                ),
                name="workers_workerevent_kind_known",
            ),
        ),
        migrations.AddField(
            model_name="place",
            name="tenant",
            field=models.ForeignKey(
                db_index=False,
                editable=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="principals.tenant",
            ),
        ),
        migrations.AddField(
            model_name="place",
            name="worker",
            field=models.ForeignKey(
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="places",
                to="workers.worker",
            ),
        ),
        migrations.AddField(
            model_name="workersource",
            name="principal",
            field=models.ForeignKey(
                db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name="+", to="principals.principal"
            ),
        ),
        migrations.AddField(
            model_name="workersource",
            name="tenant",
            field=models.ForeignKey(
                db_index=False,
                editable=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="principals.tenant",
            ),
        ),
        migrations.AddField(
            model_name="place",
            name="source",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="places",
                to="workers.workersource",
            ),
        ),
        migrations.AddIndex(
            model_name="workersource",
            index=models.Index(
                condition=models.Q(("enabled", True)), fields=["next_at"], name="workers_workersource_next"
            ),
        ),
        migrations.AddConstraint(
            model_name="workersource",
            constraint=models.UniqueConstraint(fields=("tenant", "name"), name="workers_workersource_name_once"),
        ),
        migrations.AddConstraint(
            model_name="workersource",
            constraint=models.CheckConstraint(
                condition=models.Q(("kind__in", ["pull", "static", "etcd", "consul"])),
                name="workers_workersource_kind_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="workersource",
            constraint=models.CheckConstraint(
                condition=models.Q(("every__gte", datetime.timedelta(seconds=5))),
                name="workers_workersource_not_too_often",
            ),
        ),
        migrations.AddIndex(
            model_name="place",
            index=models.Index(condition=models.Q(("gone_at", None)), fields=["next_at"], name="workers_place_next"),
        ),
        migrations.AddIndex(
            model_name="place",
            index=models.Index(fields=["worker"], name="workers_place_worker"),
        ),
        migrations.AddConstraint(
            model_name="place",
            constraint=models.UniqueConstraint(fields=("tenant", "source", "key"), name="workers_place_key_once"),
        ),
        *(protect(f"workers_{name}") for name in ("workersource", "place")),
    ]
