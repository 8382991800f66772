from django.db import migrations, models

FILL = """
    update memory_posting set superseded = true
    where passage_id in (
        select p.id from memory_passage p join memory_observation o on o.id = p.observation_id
        where o.superseded_at is not null
        union all
        select p.id from memory_passage p join memory_item i on i.id = p.item_id where i.superseded_at is not null
    );
"""


class Migration(migrations.Migration):
    dependencies = [
        ("memory", "0018_who_changed_what"),
        ("principals", "0003_retention_of_a_tenant"),
    ]

    operations = [
        migrations.RemoveConstraint(model_name="posting", name="memory_posting_once"),
        migrations.AddField(model_name="posting", name="superseded", field=models.BooleanField(db_default=False)),
        migrations.RunSQL(FILL, migrations.RunSQL.noop),
        migrations.AddConstraint(
            model_name="posting",
            constraint=models.UniqueConstraint(
                fields=("tenant", "scope", "term", "passage"),
                include=("frequency", "length", "of_context", "superseded"),
                name="memory_posting_once",
            ),
        ),
    ]
