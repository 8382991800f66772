import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("executions", "0002_step_ends_in_turn"),
        ("principals", "0003_retention_of_a_tenant"),
    ]

    operations = [
        migrations.AddIndex(
            "execution", models.Index(fields=["requested_by", "-id"], name="executions_execution_by_asker")
        ),
        migrations.AlterField(
            "execution",
            "requested_by",
            models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="principals.principal",
            ),
        ),
    ]
