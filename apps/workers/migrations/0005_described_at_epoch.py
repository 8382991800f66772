from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("workers", "0004_allowances"),
    ]

    operations = [
        migrations.AddField(
            model_name="worker",
            name="described_at_epoch",
            field=models.BigIntegerField(
                default=0, help_text="The registry's epoch when its manifest last changed or it left."
            ),
        ),
        migrations.AddIndex(
            model_name="worker",
            index=models.Index(fields=["tenant", "described_at_epoch"], name="workers_worker_described"),
        ),
    ]
