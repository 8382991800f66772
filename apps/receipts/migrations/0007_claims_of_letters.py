from django.db import migrations, models

from apps.core.rls import immutable_anew


class Migration(migrations.Migration):
    dependencies = [("receipts", "0006_arrival")]

    operations = [
        migrations.AddField(
            model_name="letter",
            name="claimed",
            field=models.BooleanField(db_default=False, default=False, help_text="A call is under way, or was lost."),
        ),
        migrations.AddField(
            model_name="letter",
            name="sent_as",
            field=models.CharField(
                help_text="The source system that it is sent under; empty: its own; none: not settled.",
                max_length=50,
                null=True,
            ),
        ),
        immutable_anew(
            "receipts_letter",
            except_columns=(
                "state",
                "due_at",
                "claimed",
                "sent_as",
                "attempts",
                "fence",
                "failure",
                "said",
                "settled_at",
                "remote_receipt_id",
                "remote_uuid",
            ),
        ),
    ]
