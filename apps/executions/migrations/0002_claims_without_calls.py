"""A claim of which a task is to come sets its charge aside."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("executions", "0001_initial")]

    operations = [
        migrations.AddField(
            model_name="executionstep",
            name="set_aside",
            field=models.DecimalField(decimal_places=6, max_digits=14, null=True),
        ),
        migrations.AddConstraint(
            model_name="executionstep",
            constraint=models.CheckConstraint(
                condition=models.Q(("set_aside", None), ("status", "calling"), _connector="OR"),
                name="executions_step_set_aside_by_claim",
            ),
        ),
    ]
