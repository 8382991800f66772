from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("memory", "0020_lookups"),
        ("principals", "0003_retention_of_a_tenant"),
    ]

    operations = [
        migrations.RemoveIndex(
            model_name="item",
            name="memory_item_current",
        ),
        migrations.AddIndex(
            model_name="item",
            index=models.Index(
                condition=models.Q(("superseded_at", None), ("valid_to", None)),
                fields=["tenant", "subject", "type", "-said_at", "-id"],
                name="memory_item_current",
            ),
        ),
        migrations.AddIndex(
            model_name="item",
            index=models.Index(
                condition=models.Q(("superseded_at", None), ("valid_to__isnull", False)),
                fields=["subject", "type", "valid_to"],
                name="memory_item_ending",
            ),
        ),
    ]
