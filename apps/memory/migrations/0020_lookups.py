import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("memory", "0019_superseded_postings")]

    operations = [
        migrations.AddIndex(
            model_name="commonword",
            index=models.Index(fields=["tenant", "term"], name="memory_commonword_of_term"),
        ),
        migrations.AddIndex(
            model_name="patternrevision",
            index=models.Index(fields=["pattern", "recorded_at", "number"], name="memory_patternrevision_from"),
        ),
        migrations.AlterField(
            model_name="patternrevision",
            name="pattern",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="revisions",
                to="memory.pattern",
            ),
        ),
    ]
