from django.db import migrations, models
from django.db.models import Q

from apps.core.rls import immutable, protect
from apps.core.tables import id_field, reference, tenant_field


class Migration(migrations.Migration):
    initial = True

    dependencies = [("principals", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="Handoff",
            fields=[
                id_field(),
                ("receipt_id", models.CharField(max_length=100)),
                ("project", models.CharField(max_length=100, blank=True)),
                ("kind", models.CharField(max_length=8)),
                ("priority", models.CharField(max_length=6)),
                ("from_session", models.CharField(max_length=100)),
                ("left_at", models.DateTimeField()),
                ("inherited_by", models.CharField(max_length=100, null=True)),
                ("inherited_at", models.DateTimeField(null=True)),
                reference("recipient", "principals.principal"),
                tenant_field(),
            ],
            options={
                "indexes": [
                    models.Index(
                        name="handoff_handoff_of_session",
                        fields=["recipient", "inherited_by"],
                        condition=Q(inherited_at__isnull=False),
                    ),
                    models.Index(
                        name="handoff_handoff_by_age",
                        fields=["inherited_at"],
                        condition=Q(inherited_at__isnull=False),
                    ),
                    models.Index(name="handoff_handoff_of_project", fields=["tenant", "project", "-id"]),
                ],
                "constraints": [
                    models.UniqueConstraint(name="handoff_handoff_receipt_once", fields=["tenant", "receipt_id"]),
                    models.CheckConstraint(
                        name="handoff_handoff_inherited_by_a_session",
                        condition=Q(inherited_at=None, inherited_by=None)
                        | Q(inherited_at__isnull=False, inherited_by__isnull=False),
                    ),
                    models.CheckConstraint(
                        name="handoff_handoff_kind_known",
                        condition=Q(kind__in=["learning", "caution", "context", "thread"]),
                    ),
                    models.CheckConstraint(
                        name="handoff_handoff_priority_known", condition=Q(priority__in=["high", "medium", "low"])
                    ),
                ],
            },
        ),
        protect("handoff_handoff"),
        immutable("handoff_handoff", except_columns=("inherited_by", "inherited_at")),
    ]
