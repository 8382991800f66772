from django.db import migrations, models

from apps.core.rls import immutable, protect
from apps.core.tables import reference, tenant_field


class Migration(migrations.Migration):
    initial = True

    dependencies = [("principals", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="Handoff",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("receipt_id", models.CharField(max_length=100)),
                ("project", models.CharField(blank=True, max_length=100)),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("learning", "learning"),
                            ("caution", "caution"),
                            ("context", "context"),
                            ("thread", "thread"),
                        ],
                        max_length=8,
                    ),
                ),
                (
                    "priority",
                    models.CharField(choices=[("high", "high"), ("medium", "medium"), ("low", "low")], max_length=6),
                ),
                ("from_session", models.CharField(max_length=100)),
                ("left_at", models.DateTimeField()),
                ("inherited_by", models.CharField(max_length=100, null=True)),
                ("inherited_at", models.DateTimeField(null=True)),
                reference("recipient", "principals.principal", "+"),
                tenant_field(),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("inherited_at__isnull", False)),
                        fields=["recipient", "inherited_by"],
                        name="handoff_handoff_of_session",
                    ),
                    models.Index(
                        condition=models.Q(("inherited_at__isnull", False)),
                        fields=["inherited_at"],
                        name="handoff_handoff_by_age",
                    ),
                    models.Index(fields=["tenant", "project", "-id"], name="handoff_handoff_of_project"),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "receipt_id"), name="handoff_handoff_receipt_once"),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("inherited_at", None), ("inherited_by", None)),
                            models.Q(("inherited_at__isnull", False), ("inherited_by__isnull", False)),
                            _connector="OR",
                        ),
                        name="handoff_handoff_inherited_by_a_session",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("kind__in", ["learning", "caution", "context", "thread"])),
                        name="handoff_handoff_kind_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("priority__in", ["high", "medium", "low"])),
                        name="handoff_handoff_priority_known",
                    ),
                ],
            },
        ),
        protect("handoff_handoff"),
        immutable("handoff_handoff", except_columns=("inherited_by", "inherited_at")),
    ]
