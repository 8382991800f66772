from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("memory", "0009_domains_forgotten")]

    operations = [
        migrations.AddIndex(
            model_name="item",
            index=models.Index(fields=["subject", "text_digest"], name="memory_item_of_text"),
        ),
    ]
