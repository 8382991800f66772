from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("receipts", "0007_claims_of_letters")]

    operations = [
        migrations.AddField(model_name="remotetarget", name="announced_until", field=models.DateTimeField(null=True)),
        migrations.AddField(model_name="remotetarget", name="busy_until", field=models.DateTimeField(null=True)),
    ]
