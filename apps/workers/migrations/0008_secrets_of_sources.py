from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("workers", "0007_signed_digest")]

    operations = [
        migrations.AddField(
            model_name="workersource",
            name="sealed_secret",
            field=models.TextField(
                db_default="", default="", editable=False, help_text="What it is told so that it answers, sealed."
            ),
        ),
    ]
