"""Nothing was superseded before it was known, whatever the clock of its writer said."""

from django.db import migrations, models
from django.db.models import F, Q


class Migration(migrations.Migration):
    dependencies = [("memory", "0009_sessions_by_whom_they_are_with")]

    operations = [
        operation
        for table in ("item", "observation")
        for operation in (
            migrations.RunSQL(
                f"update memory_{table} set superseded_at = recorded_at where superseded_at < recorded_at",
                migrations.RunSQL.noop,
            ),
            migrations.AddConstraint(
                model_name=table,
                constraint=models.CheckConstraint(
                    condition=Q(("superseded_at", None)) | Q(("superseded_at__gte", F("recorded_at"))),
                    name=f"memory_{table}_known_before_superseded",
                ),
            ),
        )
    ]
