"""The operator's read-only window on a model; actions, not edits, change things."""

from functools import cached_property
from typing import Any, Final

from django.core.paginator import Paginator
from django.db import models
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html
from unfold.admin import ModelAdmin
from unfold.contrib.filters.admin import FieldTextFilter

_COUNTED: Final = 10_000


class BoundedPaginator(Paginator):  # type: ignore[type-arg]  # not subscriptable at run time
    """Counts ten thousand rows and no further, so that a list opens as fast at ten million."""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list  # a QuerySet, typed as anything that can be cut
        return int(rows.order_by()[:_COUNTED].count())


class ExactTextFilter(FieldTextFilter):
    """A filter to type into: the values of a large table are not listed, which would read all of it."""

    def expected_parameters(self) -> list[str]:
        # The base class has set this for a search within the text; the form and the look-up both read it.
        self.lookup_kwarg = self.field_path
        return [self.field_path]

    def value(self) -> str | None:
        given: list[str] | str | None = self.used_parameters.get(self.field_path)
        return given[0] if isinstance(given, list) else given


class OperatorAdmin(ModelAdmin):
    """Look freely, act through services. Facts can't be added, changed or deleted here."""

    paginator = BoundedPaginator
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
