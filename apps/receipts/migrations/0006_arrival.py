import django.db.models.deletion
from django.db import migrations, models

from apps.core.rls import protect


class Migration(migrations.Migration):
    dependencies = [
        ("principals", "0003_retention_of_a_tenant"),
        ("receipts", "0005_receipts_of_a_source"),
    ]

    operations = [
        migrations.CreateModel(
            name="Arrival",
            fields=[
                (
                    "receipt",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="arrival",
                        serialize=False,
                        to="receipts.receipt",
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
            options={"abstract": False},
        ),
        protect("receipts_arrival"),
    ]
