from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("memory", "0014_fresh_tallies"),
        ("principals", "0003_retention_of_a_tenant"),
    ]

    operations = [
        migrations.AddIndex(
            model_name="item",
            index=models.Index(
                condition=models.Q(("slot__isnull", False), ("superseded_at", None)),
                fields=["subject", "slot", "valid_to"],
                name="memory_item_answering",
            ),
        ),
        migrations.AddIndex(
            model_name="item",
            index=models.Index(
                condition=models.Q(("superseded_at", None)),
                fields=["subject", "text_digest", "valid_to"],
                name="memory_item_saying",
            ),
        ),
    ]
