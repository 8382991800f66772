import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models

import apps.memory.models.vectors
from apps.core.rls import protect

# A row of numbers stays in its page as long as it fits: each is read where few are compared.
INLINE = "alter table memory_vector alter column embedding set storage main"


class Migration(migrations.Migration):
    dependencies = [
        ("memory", "0005_subjects_recalled"),
        ("principals", "0003_retention_of_a_tenant"),
    ]

    operations = [
        migrations.AddField(model_name="passage", name="embedder", field=models.IntegerField(null=True)),
        migrations.AddIndex(
            model_name="passage",
            index=models.Index(fields=["embedder", "id"], name="memory_passage_embedded"),
        ),
        migrations.CreateModel(
            name="Vector",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("scope", models.BigIntegerField()),
                ("embedder", models.IntegerField()),
                (
                    "embedding",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=apps.memory.models.vectors.RealField(), size=None
                    ),
                ),
                (
                    "passage",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE, related_name="vector", to="memory.passage"
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
                    models.Index(fields=["tenant", "scope", "embedder"], name="memory_vector_of_scope"),
                ],
            },
        ),
        migrations.RunSQL(INLINE, migrations.RunSQL.noop),
        protect("memory_vector"),
    ]
