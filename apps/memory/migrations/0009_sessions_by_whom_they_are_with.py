"""Of sessions that a principal may not know of, none is read to find those that it may."""

from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    dependencies = [("memory", "0008_relationships_listed")]

    operations = [
        migrations.RemoveIndex(model_name="session", name="memory_session_recent"),
        migrations.AddIndex(
            model_name="session",
            index=models.Index(
                condition=Q(("is_forgotten", False)),
                fields=["tenant", "principal", "-last_active_at", "-id"],
                name="memory_session_recent",
            ),
        ),
        migrations.AddIndex(
            model_name="session",
            index=models.Index(
                condition=Q(("is_forgotten", False)),
                fields=["tenant", "principal", "subject", "-last_active_at", "-id"],
                name="memory_session_with",
            ),
        ),
    ]
