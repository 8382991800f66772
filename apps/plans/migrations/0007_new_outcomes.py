from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("plans", "0006_tree_of_delegates")]

    operations = [
        migrations.AddField(
            "learnedmodel",
            "last_outcome",
            models.BigIntegerField(
                default=0, help_text="The number of the last of them: later ones are new. 0: all are."
            ),
        ),
        migrations.AlterField(
            "learnedmodel",
            "learned_from",
            models.PositiveIntegerField(help_text="How many outcomes it has learned from."),
        ),
    ]
