from django.contrib.postgres.operations import ValidateConstraint
from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("tasks", "0002_limits_budgets_and_orders")]

    operations = [
        ValidateConstraint(model_name="run", name="tasks_run_outcome_known"),
        ValidateConstraint(model_name="terminalrecord", name="tasks_terminalrecord_reason_iff_not_succeeded"),
    ]
