from django.db import migrations, models

from apps.core.online import AddIndexOnline


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("tasks", "0004_figures_of_queues")]

    operations = [
        AddIndexOnline(
            model_name="terminalrecord",
            index=models.Index(fields=["finished_at"], name="tasks_terminalrecord_by_end"),
        ),
    ]
