import django.core.validators
import django.db.models.deletion
from django.db import migrations, models

from apps.core.rls import protect


class Migration(migrations.Migration):
    dependencies = [
        ("digests", "0001_initial"),
        ("principals", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="Source",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=50)),
                (
                    "rate_per_hour",
                    models.IntegerField(
                        blank=True,
                        help_text="How many receipts an hour it may post; empty: the deployment's limit.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(1)],
                    ),
                ),
                (
                    "groups_by_dedupe_key",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        help_text="Gather its receipts by the event type and entity in their dedupe keys.",
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
                    models.UniqueConstraint(fields=("tenant", "name"), name="digests_source_name_once"),
                    models.CheckConstraint(
                        condition=models.Q(("rate_per_hour", None), ("rate_per_hour__gt", 0), _connector="OR"),
                        name="digests_source_rate_above_zero",
                    ),
                ],
            },
        ),
        protect("digests_source"),
    ]
