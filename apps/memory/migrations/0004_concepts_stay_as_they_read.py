"""How a concept read at another time is not written anew."""

from django.db import migrations

from apps.core.rls import immutable


class Migration(migrations.Migration):
    dependencies = [("memory", "0003_items_that_stand")]

    operations = [
        immutable("memory_conceptrevision", redactable=("type", "aliases", "description", "metadata", "is_forgotten"))
    ]
