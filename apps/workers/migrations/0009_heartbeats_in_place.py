from django.db import migrations

# Room in each page for new versions of its rows; and manifests, which no heartbeat changes, in a place of their own.
IN_PLACE = "alter table workers_worker set (fillfactor = 70, toast_tuple_target = 256)"
AS_IT_WAS = "alter table workers_worker reset (fillfactor, toast_tuple_target)"


class Migration(migrations.Migration):
    dependencies = [("workers", "0008_secrets_of_sources")]

    operations = [
        migrations.RemoveIndex(model_name="worker", name="workers_worker_late"),
        migrations.RunSQL(IN_PLACE, AS_IT_WAS),
    ]
