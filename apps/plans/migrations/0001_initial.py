import django.contrib.postgres.fields
import django.contrib.postgres.functions
import django.db.models.deletion
from django.db import migrations, models

from apps.core.rls import immutable, protect
from apps.core.tables import CreateModels, id_field, reference, tenant_field


class Migration(migrations.Migration):
    initial = True

    dependencies = [("principals", "0001_initial")]

    operations = [
        CreateModels(
            migrations.CreateModel(
                name="Delegate",
                fields=[
                    id_field(),
                    ("delegate_id", models.CharField(max_length=100)),
                    ("scope", models.CharField(blank=True, max_length=200)),
                    ("created_at", models.DateTimeField()),
                    reference("parent", "plans.delegate", "children", null=True),
                    reference("principal", "principals.principal", "+"),
                    tenant_field(),
                    (
                        "key",
                        models.UUIDField(
                            db_default=django.contrib.postgres.functions.RandomUUID(),
                            editable=False,
                            help_text="What it is known by in every deployment, on the path of a wish.",
                        ),
                    ),
                ],
                options={
                    "constraints": [
                        models.UniqueConstraint(fields=("tenant", "delegate_id"), name="plans_delegate_id_once"),
                        models.UniqueConstraint(
                            condition=models.Q(("parent", None)), fields=("tenant",), name="plans_delegate_one_root"
                        ),
                        models.UniqueConstraint(fields=("tenant", "principal"), name="plans_delegate_principal_once"),
                    ],
                },
            ),
            migrations.CreateModel(
                name="Plan",
                fields=[
                    id_field(),
                    ("plan_id", models.CharField(max_length=100)),
                    ("intent", models.TextField()),
                    (
                        "status",
                        models.CharField(
                            choices=[
                                ("ready", "ready"),
                                ("needs_confirmation", "needs_confirmation"),
                                ("needs_input", "needs_input"),
                                ("needs_escalation", "needs_escalation"),
                            ],
                            max_length=20,
                        ),
                    ),
                    ("document", models.JSONField()),
                    ("receipt_id", models.CharField(max_length=100)),
                    ("receipt_uuid", models.UUIDField()),
                    ("created_at", models.DateTimeField()),
                    reference("delegate", "plans.delegate", "plans"),
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
                    tenant_field(),
                    reference("replaces", "plans.plan", "successors", null=True),
                ],
                options={
                    "permissions": [("operate_plan", "Can confirm plans and answer their questions")],
                    "constraints": [
                        models.UniqueConstraint(fields=("tenant", "plan_id"), name="plans_plan_id_once"),
                        models.CheckConstraint(
                            condition=models.Q(
                                ("status__in", ["ready", "needs_confirmation", "needs_input", "needs_escalation"])
                            ),
                            name="plans_plan_status_known",
                        ),
                        models.UniqueConstraint(fields=("tenant", "replaces"), name="plans_plan_replaced_once"),
                    ],
                    "indexes": [models.Index(fields=["tenant", "principal", "-id"], name="plans_plan_of_principal")],
                },
            ),
            migrations.CreateModel(
                name="WaitingPlan",
                fields=[
                    id_field(),
                    ("expires_at", models.DateTimeField()),
                    reference("plan", "plans.plan", "+"),
                    tenant_field(),
                ],
                options={
                    "indexes": [models.Index(fields=["expires_at"], name="plans_waitingplan_expiry")],
                    "constraints": [models.UniqueConstraint(fields=("tenant", "plan"), name="plans_waitingplan_once")],
                },
            ),
            migrations.CreateModel(
                name="Outcome",
                fields=[
                    id_field(),
                    ("request", models.TextField()),
                    (
                        "tools",
                        django.contrib.postgres.fields.ArrayField(
                            base_field=models.CharField(max_length=32), size=None
                        ),
                    ),
                    ("links", models.JSONField(default=list, help_text="Pairs of tools: from, to.")),
                    ("weight", models.FloatField(default=1)),
                    ("recorded_at", models.DateTimeField()),
                    reference("plan", "plans.plan", "outcomes", null=True),
                    tenant_field(),
                ],
                options={
                    "indexes": [models.Index(fields=["tenant", "-id"], name="plans_outcome_latest")],
                    "constraints": [
                        models.UniqueConstraint(fields=("tenant", "plan"), name="plans_outcome_once_a_plan"),
                        models.CheckConstraint(
                            condition=models.Q(("weight__gt", 0), ("weight__lte", 1)),
                            name="plans_outcome_weight_is_a_share",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("tools__len__gt", 0)), name="plans_outcome_ran_something"
                        ),
                    ],
                },
            ),
            migrations.CreateModel(
                name="LearnedModel",
                fields=[
                    id_field(),
                    ("learned_from", models.PositiveIntegerField(help_text="How many outcomes it has learned from.")),
                    (
                        "last_outcome",
                        models.BigIntegerField(help_text="The number of the last of them: later ones are new."),
                    ),
                    ("body", models.BinaryField()),
                    ("learned_at", models.DateTimeField()),
                    tenant_field(),
                ],
                options={
                    "constraints": [
                        models.UniqueConstraint(fields=("tenant",), name="plans_learnedmodel_one_a_tenant")
                    ],
                },
            ),
        ),
        *(protect(f"plans_{name}") for name in ("delegate", "plan", "waitingplan", "outcome", "learnedmodel")),
        immutable("plans_plan", redactable=("intent", "document")),
        immutable("plans_outcome", redactable=("request",)),
    ]
