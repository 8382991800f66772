"""A step knows since when its worker is missed."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("executions", "0002_claims_without_calls")]

    operations = [
        migrations.AddField(model_name="executionstep", name="missed_since", field=models.DateTimeField(null=True)),
    ]
