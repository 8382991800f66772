import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("memory", "0017_concepts_as_of_before"),
        ("principals", "0003_retention_of_a_tenant"),
    ]

    operations = [
        migrations.AddField(
            model_name="subject",
            name="added_by",
            field=models.ForeignKey(
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="principals.principal",
            ),
        ),
        migrations.AddField(
            model_name="subject",
            name="author",
            field=models.ForeignKey(
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="principals.principal",
            ),
        ),
        migrations.AddField(
            model_name="memorypolicy",
            name="author",
            field=models.ForeignKey(
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="principals.principal",
            ),
        ),
    ]
