"""A page of an export costs what it holds, whatever else there is."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("memory", "0012_turns_by_when_they_were_said"),
        ("principals", "0001_initial"),
    ]

    operations = [
        migrations.AddIndex(
            model_name="envelopeloaded",
            index=models.Index(fields=["subject", "-id"], name="memory_envelopeloaded_listed"),
        ),
        migrations.AddIndex(
            model_name="session",
            index=models.Index(
                condition=models.Q(("subject__isnull", False)), fields=["subject", "-id"], name="memory_session_listed"
            ),
        ),
    ]
