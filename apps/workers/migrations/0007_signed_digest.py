from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("workers", "0006_remembered_at_epoch")]

    operations = [
        migrations.AddField(
            model_name="worker",
            name="signed_digest",
            field=models.CharField(help_text="What that signature was made over.", max_length=32, null=True),
        ),
    ]
