from django.db import migrations, models

from apps.core.online import AddIndexOnline


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("receipts", "0004_retention")]

    operations = [
        AddIndexOnline(
            model_name="receipt",
            index=models.Index(
                condition=models.Q(("pruned_at", None), ("surface", "inbox")),
                fields=["recipient", "source_system", "id"],
                name="receipts_receipt_of_source",
            ),
        ),
    ]
