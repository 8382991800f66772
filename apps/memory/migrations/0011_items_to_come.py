from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("memory", "0010_items_by_text")]

    operations = [
        migrations.AddIndex(
            model_name="item",
            index=models.Index(
                condition=models.Q(("superseded_at", None)),
                fields=["subject", "valid_from"],
                name="memory_item_beginning",
            ),
        ),
    ]
