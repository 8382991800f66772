from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("activation", "0001_initial")]

    operations = [
        migrations.AddField(model_name="dispatch", name="announced_until", field=models.DateTimeField(null=True)),
        migrations.AddField(model_name="dispatch", name="busy_until", field=models.DateTimeField(null=True)),
    ]
