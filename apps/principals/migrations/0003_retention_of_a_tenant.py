import datetime

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("principals", "0002_life")]

    operations = [
        migrations.AddField(
            model_name="tenant",
            name="keep_receipts",
            field=models.DurationField(
                help_text="How long a receipt is kept once it is acked; empty: as the deployment's settings say.",
                null=True,
            ),
        ),
        migrations.AddConstraint(
            model_name="tenant",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("keep_receipts", None), ("keep_receipts__gt", datetime.timedelta(0)), _connector="OR"
                ),
                name="principals_tenant_keeps_receipts_a_while",
            ),
        ),
    ]
