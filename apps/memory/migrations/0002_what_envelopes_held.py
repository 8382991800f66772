"""Of envelopes that were given, since when what they held had been said."""

from datetime import UTC, datetime

from django.db import migrations, models

# Of those that were given before, nobody knows what they left out.
ALL = datetime(1970, 1, 1, tzinfo=UTC)


class Migration(migrations.Migration):
    dependencies = [("memory", "0001_initial")]

    operations = [
        migrations.AddField(
            model_name="envelopeloaded",
            name=name,
            field=models.DateTimeField(null=True, default=ALL),
            preserve_default=False,
        )
        for name in ("facts_since", "patterns_since", "narratives_since")
    ]
