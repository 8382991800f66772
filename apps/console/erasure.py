"""Where somebody's words can stand in what operators did: what that was done to, as it was called, and why."""

from collections.abc import Mapping
from typing import Final

from django.apps import apps
from django.db import models

from apps.core.erasure import Rows, register
from apps.principals.models import Tenant, TenantModel

# Of what is of tenants: where that stands, and which tenant's it is.
_TENANTS: Final[Mapping[type[models.Model], str]] = dict.fromkeys(
    (model for model in apps.get_models() if issubclass(model, TenantModel)), "tenant_id"
) | {Tenant: "id"}
_METAS: Final = {model._meta: tenant for model, tenant in _TENANTS.items()}  # noqa: SLF001  # Django documents it as public
_CASES: Final = "".join(
    f" when '{meta.label_lower}' then exists"
    f" (select from {meta.db_table} where {meta.pk.column}::text = object_id and {tenant} <> %(tenant)s)"
    for meta, tenant in _METAS.items()
)
_ELSEWHERE: Final = f"(select case app_label || '.' || model{_CASES} else false end from django_content_type where id = content_type_id)"

register(
    Rows(
        table="django_admin_log",
        columns=["object_repr", "change_message"],
        redacted={"object_repr": "''", "change_message": "''"},
        # Of a thing that is gone nobody knows whose it was.
        tenant=f"{_ELSEWHERE} is not true",
    )
)
