import django.contrib.postgres.functions
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("plans", "0004_replaced_plans"),
    ]

    operations = [
        migrations.AddField(
            model_name="delegate",
            name="key",
            field=models.UUIDField(
                db_default=django.contrib.postgres.functions.RandomUUID(),
                editable=False,
                help_text="What it is known by in every deployment, on the path of a wish.",
            ),
        ),
    ]
