from django.db import migrations, models
from django.db.models import Q

# Steps that ended before there were numbers, in the order in which they ended.
_NUMBER = """
    update executions_executionstep s set ended_nth = n.nth
    from (
        select id, row_number() over (partition by execution_id order by ended_at, position) as nth
        from executions_executionstep
        where ended_at is not null and not coalesce((definition ->> 'done')::boolean, false)
    ) n
    where s.id = n.id
"""


class Migration(migrations.Migration):
    dependencies = [("executions", "0001_initial")]

    operations = [
        migrations.AddField("executionstep", "ended_nth", models.PositiveSmallIntegerField(null=True)),
        migrations.RunSQL(_NUMBER, migrations.RunSQL.noop),
        migrations.AddConstraint(
            "executionstep",
            models.UniqueConstraint(fields=["tenant", "execution", "ended_nth"], name="executions_step_ends_in_turn"),
        ),
        migrations.AddConstraint(
            "executionstep",
            models.CheckConstraint(
                condition=Q(ended_nth=None) | Q(ended_at__isnull=False), name="executions_step_numbered_when_ended"
            ),
        ),
    ]
