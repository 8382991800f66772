"""Relationships are listed newest first: all, those of a concept, those of a type."""

from django.db import migrations, models
from django.db.models import CASCADE


class Migration(migrations.Migration):
    dependencies = [("memory", "0007_statements_by_their_words")]

    operations = [
        migrations.AddIndex(
            model_name="relationship",
            index=models.Index(fields=["source", "-id"], name="memory_relationship_from"),
        ),
        migrations.AddIndex(
            model_name="relationship",
            index=models.Index(fields=["target", "-id"], name="memory_relationship_to"),
        ),
        migrations.AddIndex(
            model_name="relationship",
            index=models.Index(fields=["tenant", "type", "-id"], name="memory_relationship_of_type"),
        ),
        migrations.AddIndex(
            model_name="relationship",
            index=models.Index(fields=["tenant", "-id"], name="memory_relationship_newest"),
        ),
        migrations.AlterField(
            model_name="relationship",
            name="source",
            field=models.ForeignKey(db_index=False, on_delete=CASCADE, related_name="outgoing", to="memory.concept"),
        ),
        migrations.AlterField(
            model_name="relationship",
            name="target",
            field=models.ForeignKey(db_index=False, on_delete=CASCADE, related_name="incoming", to="memory.concept"),
        ),
    ]
