from django.db import migrations, models

KNOWN = """
    update memory_session set is_forgotten = true
    where subject_id is null and conversation_id ~ '^forgotten[_:]' and title = '' and summary = ''
"""


class Migration(migrations.Migration):
    dependencies = [("memory", "0011_items_to_come")]

    operations = [
        migrations.AddField(model_name="session", name="is_forgotten", field=models.BooleanField(db_default=False)),
        migrations.RunSQL(KNOWN, migrations.RunSQL.noop),
    ]
