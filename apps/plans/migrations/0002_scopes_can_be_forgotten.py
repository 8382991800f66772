"""The scope of a plan is forgotten with the plan's other words."""

from typing import Final

from django.db import migrations

from apps.core.rls import immutable

_BEFORE: Final = immutable("plans_plan", redactable=("intent", "document"))


class Migration(migrations.Migration):
    dependencies = [("plans", "0001_initial")]

    operations = [
        migrations.RunSQL(_BEFORE.reverse_sql or "", _BEFORE.sql),
        immutable("plans_plan", redactable=("intent", "scope", "document")),
    ]
