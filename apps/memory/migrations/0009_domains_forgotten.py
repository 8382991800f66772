from django.db import migrations

from apps.core.rls import immutable_anew


class Migration(migrations.Migration):
    dependencies = [("memory", "0008_superseded_by_the_forgotten")]

    operations = [
        immutable_anew(
            "memory_observation",
            except_columns=("superseded_at", "superseded_by_id"),
            redactable=("text", "speaker", "domain", "evidence", "metadata"),
        ),
    ]
