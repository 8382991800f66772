from django.db import migrations, models

from apps.core.online import AddIndexOnline


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("tasks", "0010_budgets")]

    operations = [
        AddIndexOnline(
            model_name="hottask",
            index=models.Index(
                fields=["budget_id"],
                name="tasks_hottask_by_budget",
                condition=models.Q(("budget_id__isnull", False)),
            ),
        ),
    ]
