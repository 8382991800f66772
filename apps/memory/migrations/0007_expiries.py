from django.db import migrations, models

# The sweep finds out when it is.
LOOK = "update memory_subject set expires_at = now() where delete_after_days is not null"


class Migration(migrations.Migration):
    dependencies = [("memory", "0006_vectors")]

    operations = [
        migrations.RemoveIndex(model_name="subject", name="memory_subject_deleting"),
        migrations.AddField(model_name="subject", name="expires_at", field=models.DateTimeField(null=True)),
        migrations.AddIndex(
            model_name="subject",
            index=models.Index(
                condition=models.Q(("expires_at__isnull", False)),
                fields=["expires_at"],
                name="memory_subject_expiring",
            ),
        ),
        migrations.AddConstraint(
            model_name="subject",
            constraint=models.CheckConstraint(
                condition=models.Q(("expires_at", None), ("delete_after_days__isnull", False), _connector="OR"),
                name="memory_subject_that_keeps_all_never_expires",
            ),
        ),
        migrations.AddIndex(
            model_name="observation",
            index=models.Index(
                condition=models.Q(("session__isnull", False)),
                fields=["session", "id"],
                name="memory_observation_of_session",
            ),
        ),
        migrations.RunSQL(LOOK, migrations.RunSQL.noop),
    ]
