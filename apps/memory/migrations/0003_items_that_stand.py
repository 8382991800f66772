"""What stands of a subject is listed without what was superseded."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("memory", "0002_what_envelopes_held")]

    operations = [
        migrations.AddIndex(
            model_name="item",
            index=models.Index(
                condition=models.Q(("superseded_at", None)), fields=["subject", "-id"], name="memory_item_standing"
            ),
        )
    ]
