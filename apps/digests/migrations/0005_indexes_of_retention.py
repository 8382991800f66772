from django.contrib.postgres.operations import RemoveIndexConcurrently, ValidateConstraint
from django.db import migrations, models

from apps.core.online import AddIndexOnline


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("digests", "0004_retention")]

    operations = [
        ValidateConstraint(model_name="entry", name="digests_entry_pruned_of_its_receipts"),
        AddIndexOnline(
            model_name="entry",
            index=models.Index(
                condition=models.Q(("superseded_at__isnull", False)),
                fields=["superseded_at", "id"],
                name="digests_entry_superseded_since",
            ),
        ),
        AddIndexOnline(
            model_name="receiptstate",
            index=models.Index(
                condition=models.Q(("thread__isnull", False)),
                fields=["thread", "receipt"],
                name="digests_receiptstate_by_thread",
            ),
        ),
        RemoveIndexConcurrently(model_name="receiptstate", name="digests_receiptstate_in_thread"),
    ]
