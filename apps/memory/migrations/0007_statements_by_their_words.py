"""Statements are found by their very words, also those of which recall knows none."""

from django.contrib.postgres.indexes import HashIndex
from django.db import migrations
from django.db.models import Q


class Migration(migrations.Migration):
    dependencies = [("memory", "0006_answers_by_their_slots")]

    operations = [
        migrations.AddIndex(
            model_name="concept",
            index=HashIndex(condition=~Q(description=""), fields=["description"], name="memory_concept_of_description"),
        ),
        migrations.AddIndex(
            model_name="observation",
            index=HashIndex(
                condition=Q(("session", None), ("superseded_at", None)),
                fields=["text"],
                name="memory_observation_of_text",
            ),
        ),
        migrations.AddIndex(
            model_name="pattern",
            index=HashIndex(fields=["text"], name="memory_pattern_of_text"),
        ),
    ]
