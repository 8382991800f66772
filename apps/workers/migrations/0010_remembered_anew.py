from django.db import migrations

# Memory says more of a worker than it did: whether it announces itself, and whether it is in quarantine. The tick writes it.
ANEW = "update workers_worker set remembered_at_epoch = -1"


class Migration(migrations.Migration):
    dependencies = [
        ("workers", "0009_heartbeats_in_place"),
    ]

    operations = [
        migrations.RunSQL(ANEW, migrations.RunSQL.noop),
    ]
