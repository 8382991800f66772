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
            name="Delegate",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("delegate_id", models.CharField(max_length=100)),
                ("scope", models.CharField(blank=True, max_length=200)),
                ("created_at", models.DateTimeField()),
                (
                    "parent",
                    models.ForeignKey(
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="children",
                        to="plans.delegate",
                    ),
                ),
                (
                    "principal",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
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
                    models.UniqueConstraint(fields=("tenant", "delegate_id"), name="plans_delegate_id_once"),
                    models.UniqueConstraint(
                        condition=models.Q(("parent", None)), fields=("tenant",), name="plans_delegate_one_root"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("parent", models.F("id")), _negated=True),
                        name="plans_delegate_not_its_own_parent",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Plan",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("plan_id", models.CharField(max_length=100)),
                ("intent", models.TextField()),
                (
                    "status",
                    models.CharField(
                        choices=[("ready", "ready"), ("needs_escalation", "needs_escalation")], max_length=20
                    ),
                ),
                ("scope", models.CharField(max_length=200)),
                ("confidence", models.FloatField()),
                ("document", models.JSONField()),
                ("plan_hash", models.CharField(max_length=64)),
                ("planner_version", models.CharField(max_length=50)),
                ("registry_epoch", models.BigIntegerField()),
                ("history_epoch", models.BigIntegerField()),
                ("receipt_id", models.CharField(max_length=100)),
                ("receipt_uuid", models.UUIDField()),
                ("created_at", models.DateTimeField()),
                (
                    "delegate",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="plans",
                        to="plans.delegate",
                    ),
                ),
                (
                    "principal",
                    models.ForeignKey(
                        db_index=False,
                        help_text="Who asked for it.",
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
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
                    models.UniqueConstraint(fields=("tenant", "plan_id"), name="plans_plan_id_once"),
                    models.CheckConstraint(
                        condition=models.Q(("status__in", ["ready", "needs_escalation"])),
                        name="plans_plan_status_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("confidence__gte", 0), ("confidence__lte", 1)),
                        name="plans_plan_confidence_between_0_and_1",
                    ),
                ],
                "indexes": [
                    models.Index(fields=["tenant", "principal", "-id"], name="plans_plan_of_principal"),
                ],
            },
        ),
        migrations.CreateModel(
            name="PlanStep",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("position", models.PositiveSmallIntegerField()),
                ("step_id", models.CharField(max_length=64)),
                (
                    "step_type",
                    models.CharField(
                        choices=[
                            ("call_worker", "call_worker"),
                            ("queue_execution", "queue_execution"),
                            ("wait_for", "wait_for"),
                            ("aggregate", "aggregate"),
                            ("escalate", "escalate"),
                        ],
                        max_length=20,
                    ),
                ),
                (
                    "depends_on",
                    django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=64), size=None),
                ),
                ("worker_id", models.CharField(blank=True, max_length=100)),
                ("tool_name", models.CharField(blank=True, max_length=200)),
                ("tool_uid", models.CharField(blank=True, max_length=32)),
                ("params", models.JSONField(null=True)),
                ("provenance", models.JSONField(null=True)),
                ("confidence", models.FloatField(null=True)),
                ("estimated_runtime_seconds", models.FloatField(null=True)),
                (
                    "plan",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="step_rows",
                        to="plans.plan",
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
                    models.UniqueConstraint(fields=("tenant", "plan", "step_id"), name="plans_planstep_id_once_a_plan"),
                    models.UniqueConstraint(
                        fields=("tenant", "plan", "position"), name="plans_planstep_position_once_a_plan"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("step_type__in", ["call_worker", "queue_execution", "wait_for", "aggregate", "escalate"])
                        ),
                        name="plans_planstep_type_known",
                    ),
                ],
            },
        ),
        *(protect(f"plans_{name}") for name in ("delegate", "plan", "planstep")),
        immutable("plans_plan", redactable=("intent", "document")),
        immutable("plans_planstep", redactable=("params", "provenance")),
    ]
