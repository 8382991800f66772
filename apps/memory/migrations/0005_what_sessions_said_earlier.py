import django.contrib.postgres.fields
import django.db.models.expressions
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("memory", "0004_concepts_stay_as_they_read"),
    ]

    operations = [
        migrations.AddField(
            model_name="session",
            name="overwritten",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.BinaryField(max_length=32),
                db_default=django.db.models.expressions.RawSQL("'{}'::bytea[]", ()),
                default=list,
                editable=False,
                size=None,
            ),
        ),
        migrations.AddField(
            model_name="session",
            name="was_called",
            field=models.BinaryField(max_length=32, null=True),
        ),
    ]
