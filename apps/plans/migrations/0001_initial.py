from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models
from django.db.models import Q

from apps.core.rls import immutable
from apps.core.tables import CreateModels, reference, table


class Migration(migrations.Migration):
    initial = True

    dependencies = [("principals", "0001_initial")]

    operations = [
        CreateModels(
            table(
                "Plan",
                ("plan_id", models.CharField(max_length=100)),
                ("intent", models.TextField()),
                ("status", models.CharField(max_length=20)),
                ("document", models.JSONField()),
                ("receipt_id", models.CharField(max_length=100)),
                ("receipt_uuid", models.UUIDField()),
                ("created_at", models.DateTimeField()),
                reference("delegate", "principals.principal", "+"),
                reference("principal", "principals.principal", "+"),
                reference("replaces", "plans.plan", "successors", null=True),
                ("waits_until", models.DateTimeField(null=True)),
                ("completed", ArrayField(models.CharField(max_length=64), null=True)),
                permissions=[("operate_plan", "Can confirm plans and answer their questions")],
                constraints=[
                    models.UniqueConstraint(fields=["tenant", "plan_id"], name="plans_plan_id_once"),
                    models.UniqueConstraint(fields=["tenant", "replaces"], name="plans_plan_replaced_once"),
                ],
                indexes=[
                    models.Index(fields=["tenant", "principal", "-id"], name="plans_plan_of_principal"),
                    models.Index(fields=["waits_until"], condition=~Q(waits_until=None), name="plans_plan_waiting"),
                    models.Index(fields=["tenant", "-id"], condition=~Q(completed=None), name="plans_plan_completed"),
                ],
            ),
            table(
                "LearnedModel",
                ("learned_from", models.PositiveIntegerField()),
                ("body", models.BinaryField()),
                constraints=[models.UniqueConstraint(fields=["tenant"], name="plans_learnedmodel_one_a_tenant")],
            ),
        ),
        immutable(
            "plans_plan", except_columns=("waits_until", "completed"), redactable=("intent", "status", "document")
        ),
    ]
