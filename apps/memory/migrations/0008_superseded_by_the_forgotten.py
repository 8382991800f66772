import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("memory", "0007_expiries")]

    operations = [
        migrations.AlterField(
            model_name="item",
            name="superseded_by",
            field=models.ForeignKey(
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="supersedes",
                to="memory.item",
            ),
        ),
        migrations.RemoveConstraint(model_name="item", name="memory_item_superseded_by_an_item"),
        migrations.AddConstraint(
            model_name="item",
            constraint=models.CheckConstraint(
                condition=models.Q(("superseded_by", None), ("superseded_at__isnull", False), _connector="OR"),
                name="memory_item_superseded_by_an_item_at_a_time",
            ),
        ),
    ]
