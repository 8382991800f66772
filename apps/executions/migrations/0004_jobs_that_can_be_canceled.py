"""A job that a worker can cancel is known until it is over."""

import django.db.models.deletion
from django.contrib.postgres.indexes import HashIndex
from django.db import migrations, models

from apps.core.rls import protect


class Migration(migrations.Migration):
    dependencies = [("executions", "0003_worker_missed"), ("principals", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="BegunJob",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("task_id", models.BigIntegerField(null=True)),
                ("worker_id", models.CharField(max_length=100)),
                ("cancel_tool", models.CharField(max_length=200)),
                ("job_id", models.CharField(max_length=1_000)),
                ("began_at", models.DateTimeField()),
                ("next_at", models.DateTimeField()),
                ("tries", models.PositiveSmallIntegerField(db_default=0, default=0)),
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
                "indexes": [HashIndex(fields=["job_id"], name="executions_begunjob_by_job")],
            },
        ),
        protect("executions_begunjob"),
    ]
