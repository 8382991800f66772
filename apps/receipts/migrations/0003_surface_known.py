from django.contrib.postgres.operations import ValidateConstraint
from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("receipts", "0002_retry_queue")]

    operations = [ValidateConstraint(model_name="receipt", name="receipts_receipt_surface_known")]
