from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tasks", "0012_partitions")]

    operations = [
        # Of the parent, and so of every partition; those to come are made like it.
        migrations.AddField(model_name="run", name="progress_sequence", field=models.BigIntegerField(null=True)),
        migrations.AddField(model_name="run", name="checkpoint_sequence", field=models.BigIntegerField(null=True)),
        migrations.AddConstraint(
            model_name="run",
            constraint=models.CheckConstraint(
                condition=models.Q(("checkpoint_sequence__gte", 0), ("progress_sequence__gte", 0)),
                name="tasks_run_sequences_not_negative",
            ),
        ),
    ]
