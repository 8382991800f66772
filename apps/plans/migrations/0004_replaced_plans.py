import django.db.models.deletion
from django.db import migrations, models

from apps.core.rls import protect


class Migration(migrations.Migration):
    dependencies = [
        ("plans", "0003_calibration"),
        ("principals", "0003_retention_of_a_tenant"),
    ]

    operations = [
        migrations.CreateModel(
            name="WaitingPlan",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("expires_at", models.DateTimeField()),
                (
                    "plan",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
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
                "indexes": [models.Index(fields=["expires_at"], name="plans_waitingplan_expiry")],
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "plan"), name="plans_waitingplan_once"),
                ],
            },
        ),
        protect("plans_waitingplan"),
        migrations.AddField(
            model_name="plan",
            name="replaces",
            field=models.ForeignKey(
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="successors",
                to="plans.plan",
            ),
        ),
        migrations.AddConstraint(
            model_name="plan",
            constraint=models.UniqueConstraint(fields=("tenant", "replaces"), name="plans_plan_replaced_once"),
        ),
    ]
