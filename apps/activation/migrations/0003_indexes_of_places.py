from django.db import migrations, models

from apps.core.online import AddIndexOnline


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("activation", "0002_places")]

    operations = [
        AddIndexOnline(
            model_name="dispatch",
            index=models.Index(
                condition=models.Q(("announced_until__isnull", False)),
                fields=["target"],
                name="activation_dispatch_waiting",
            ),
        ),
        AddIndexOnline(
            model_name="dispatch",
            index=models.Index(fields=["busy_until"], name="activation_dispatch_busy"),
        ),
    ]
