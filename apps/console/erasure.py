"""Forgetting in the log of operators' actions: it loses the names of rows and the reasons of changes."""

from typing import Final

from django.apps import apps

from apps.core.erasure import Rows, register
from apps.principals.models import Tenant, TenantModel

_METAS: Final = [
    (model._meta, "id" if model is Tenant else "tenant_id")  # noqa: SLF001  # Django documents it as public
    for model in apps.get_models()
    if issubclass(model, Tenant | TenantModel)
]
_ELSEWHERE: Final = "".join(
    f" when '{meta.label_lower}' then exists"
    f" (select from {meta.db_table} t where t.{meta.pk.column}::text = django_admin_log.object_id"
    f" and t.{tenant} <> %(tenant)s)"
    for meta, tenant in _METAS
)

register(
    Rows(
        table="django_admin_log",
        redacted={"object_repr": "''", "change_message": "''"},
        # A log entry has no tenant. One about a row that is gone belongs to any.
        tenant="(select case app_label || '.' || model" + _ELSEWHERE + " else false end"
        " from django_content_type where id = content_type_id) is not true",
    )
)
