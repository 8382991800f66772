import datetime

import django.db.models.deletion
from django.db import migrations, models

from apps.core.rls import protect


class Migration(migrations.Migration):
    dependencies = [
        ("digests", "0002_source"),
        ("principals", "0001_initial"),
    ]

    operations = [
        migrations.AddField(
            model_name="inbox",
            name="has_source_policies",
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.CreateModel(
            name="SourcePolicy",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("source_system", models.CharField(max_length=50)),
                ("enabled", models.BooleanField(null=True)),
                ("window", models.DurationField(null=True)),
                ("max_items", models.IntegerField(null=True)),
                ("max_thread_age", models.DurationField(null=True)),
                (
                    "inbox",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="source_policies",
                        to="digests.inbox",
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
                "verbose_name_plural": "source policies",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("tenant", "inbox", "source_system"), name="digests_sourcepolicy_once_per_source"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("window", None), ("window__gte", datetime.timedelta(0)), _connector="OR"),
                            models.Q(("max_items", None), ("max_items__range", (1, 500)), _connector="OR"),
                            models.Q(
                                ("max_thread_age", None), ("max_thread_age__gt", datetime.timedelta(0)), _connector="OR"
                            ),
                        ),
                        name="digests_sourcepolicy_possible",
                    ),
                ],
            },
        ),
        protect("digests_sourcepolicy"),
    ]
