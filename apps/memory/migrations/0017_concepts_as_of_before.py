import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models

from apps.core.rls import protect


class Migration(migrations.Migration):
    dependencies = [
        ("memory", "0016_marks"),
        ("principals", "0003_retention_of_a_tenant"),
    ]

    operations = [
        migrations.CreateModel(
            name="ConceptRevision",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("type", models.CharField(blank=True, max_length=50)),
                (
                    "aliases",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=200), default=list, size=None
                    ),
                ),
                ("description", models.TextField(blank=True)),
                ("metadata", models.JSONField(default=dict)),
                ("recorded_at", models.DateTimeField()),
                ("superseded_at", models.DateTimeField()),
                ("is_forgotten", models.BooleanField(db_default=False)),
                (
                    "author",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="principals.principal",
                    ),
                ),
                (
                    "concept",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="revisions",
                        to="memory.concept",
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
                "indexes": [
                    models.Index(fields=["concept", "superseded_at", "id"], name="memory_conceptrevision_until"),
                ],
            },
        ),
        protect("memory_conceptrevision"),
    ]
