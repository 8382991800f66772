from django.db import migrations, models

from apps.core.rls import immutable_anew, kept

_SAID = (
    "title",
    "summary",
    "metadata",
    "dedupe_key",
    "artifact_pointer",
    "artifact_location",
    "suggested_next_step",
    "resource_ref",
    "summary_hint",
    "delivery_handle",
)


class Migration(migrations.Migration):
    dependencies = [("receipts", "0003_surface_known")]

    operations = [
        migrations.AddField(model_name="receipt", name="pruned_at", field=models.DateTimeField(null=True)),
        immutable_anew(
            "receipts_receipt",
            except_columns=("caused_by_id", "pairs_with_id"),
            redactable=(*_SAID, "redacted_at"),
            prunable=(*_SAID, "pruned_at"),
        ),
        kept("receipts_receipt"),
        kept("receipts_receiptkey"),
    ]
