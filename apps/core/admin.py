"""The operator's read-only window on a model; actions, not edits, change things."""

from typing import Any

from django.db import models
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html
from unfold.admin import ModelAdmin


class OperatorAdmin(ModelAdmin):
    """Look freely, act through services. Facts can't be added, changed or deleted here."""

    show_full_result_count = False
    list_per_page = 50

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def link_to(related: models.Model | None) -> str:
    """A link to a related thing's page; a hyphen where there is none."""
    if related is None:
        return "-"
    meta = related._meta  # noqa: SLF001  # Django documents _meta as public
    try:
        address = reverse(f"admin:{meta.app_label}_{meta.model_name}_change", args=[related.pk])
    except NoReverseMatch:
        return str(related)
    return format_html('<a href="{}" class="text-primary-600">{}</a>', address, related)
