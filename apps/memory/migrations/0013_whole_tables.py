import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("memory", "0012_sessions_forgotten")]

    operations = [
        migrations.AddIndex(
            model_name="item", index=models.Index(fields=["subject", "-id"], name="memory_item_listed")
        ),
        migrations.AlterField(
            model_name="relationship",
            name="source",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="outgoing", to="memory.concept"
            ),
        ),
        migrations.AlterField(
            model_name="patternrevision",
            name="pattern",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="revisions", to="memory.pattern"
            ),
        ),
    ]
