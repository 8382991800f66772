"""The operator's read-only window on a model; actions, not edits, change things."""

import json
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from functools import cache, cached_property, wraps
from typing import Any, Final

from django import forms
from django.contrib import messages
from django.contrib.admin import ShowFacets, display
from django.core.checks import CheckMessage
from django.core.paginator import Paginator
from django.db import models, transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.admin import ModelAdmin
from unfold.checks import UnfoldModelAdminChecks
from unfold.contrib.filters.admin import FieldTextFilter
from unfold.decorators import action
from unfold.forms import BaseDialogForm
from unfold.utils import prettify_json
from unfold.widgets import UnfoldAdminTextInputWidget

from apps.core.charts import Chart
from apps.core.errors import DomainError

COUNTED: Final = 1_000
LOOKED_AT: Final = 100_000
_UNFOLDED_LINES: Final = 30


def counted(count: int) -> str:
    """A number as text, of a count that may have ended there."""
    return f"{count:,}" if count < COUNTED else f"{COUNTED:,}+"


class _OrMore(int):
    """The number at which counting ended."""

    def __str__(self) -> str:
        return counted(self)


class BoundedPaginator(Paginator):  # type: ignore[type-arg]  # not subscriptable at run time
    """Counts a thousand rows and no further, so that a list opens as fast at ten million."""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list  # a QuerySet, typed as anything that can be cut
        count = int(rows.order_by().values("pk")[:COUNTED].count())
        return count if count < COUNTED else _OrMore(count)


def among_newest(rows: "models.QuerySet[Any]") -> "models.QuerySet[Any]":
    """Of the newest rows: what no index finds may be rare, and then all of a large table would be read."""
    newest = rows.model._default_manager.order_by("-pk").values_list("pk", flat=True).first()  # noqa: SLF001  # Django documents it
    return rows if newest is None else rows.filter(pk__gt=newest - LOOKED_AT)


class ExactTextFilter(FieldTextFilter):
    """A filter to type into: the values of a large table are not listed, which would read all of it."""

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        found = super().queryset(request, queryset)
        return among_newest(found) if self.value() else found

    def expected_parameters(self) -> list[str]:
        # The base class has set this for a search within the text; the form and the look-up both read it.
        self.lookup_kwarg = self.field_path
        return [self.field_path]

    def value(self) -> str | None:
        given: list[str] | str | None = self.used_parameters.get(self.field_path)
        return given[0] if isinstance(given, list) else given


class _Checks(UnfoldModelAdminChecks):
    """Without the one check that asks the database, which need not run, or have its tables, at a check."""

    def _check_unfold_action_permission_methods(self, obj: Any) -> list[CheckMessage]:
        return []


class OperatorAdmin(ModelAdmin):
    """Look freely, act through services. Facts can't be added, changed or deleted here."""

    checks_class = _Checks
    paginator = BoundedPaginator
    show_full_result_count = False
    # Facets count the whole table, whatever its size.
    show_facets = ShowFacets.NEVER
    list_per_page = 50
    # An open list, and the page of a thing of which more becomes, renew themselves.
    list_before_template = change_form_outer_before_template = "console/charts.html"
    renews_list = False

    def goes_on(self, thing: Any) -> bool:
        """Whether the page of a thing is to be renewed."""
        return False

    def charts(self, thing: Any) -> list[Chart]:
        """What stands above the fields of a thing."""
        return []

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        thing = context["original"]
        if thing is not None:
            context["renews"], context["charts"] = self.goes_on(thing), self.charts(thing)
            context["show_history"] = bool(self.actions_detail)
        return super().render_change_form(request, context, *args, **kwargs)

    def get_object(self, request: Any, object_id: str, from_field: str | None = None) -> Any:
        """Looked up once for each page."""
        found = request.__dict__.setdefault("looked_up", {})
        if (key := (self.opts.label, object_id, from_field)) not in found:
            found[key] = super().get_object(request, object_id, from_field)
        return found[key]

    def get_actions_list(self, request: HttpRequest) -> list[Any]:
        """None for a viewer."""
        return super().get_actions_list(request) if operates(request) else []

    def get_actions_detail(self, request: HttpRequest, object_id: int) -> list[Any]:
        """Only what this operator can do with the thing now: see :func:`verb`."""
        thing = self.get_object(request, str(object_id))
        if thing is None or not self.actions_detail or not operates(request, thing):
            return []
        return [one for one in super().get_actions_detail(request, object_id) if one.method.possible(thing)]

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        """Moments are shown by how long ago they were, and the tenant to who sees several."""
        moments, shown = self._moments(), list(super().get_list_display(request))
        if self._tells_tenants(request) and "tenant" not in shown:
            shown.insert(1, "tenant")
        return [since(one) if one in moments else one for one in shown]

    def get_list_select_related(self, request: HttpRequest) -> Any:
        related = super().get_list_select_related(request)
        return [*(related or []), "tenant"] if self._tells_tenants(request) else related

    def _tells_tenants(self, request: Any) -> bool:
        if "tenant" not in (self.list_filter or []):
            return False
        if not hasattr(request, "sees_tenants"):
            tenants: Any = self.opts.get_field("tenant").related_model
            request.sees_tenants = tenants.objects.all()[1:2].exists()
        return bool(request.sees_tenants)

    def _moments(self) -> set[str]:
        return {field.name for field in self.opts.concrete_fields if isinstance(field, models.DateTimeField)}

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> Any:
        found, has_duplicates = super().get_search_results(request, queryset, search_term)
        is_within = any(not (one.startswith("=") or one.endswith("__exact")) for one in self.search_fields)
        return (among_newest(found) if search_term and is_within else found), has_duplicates

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        """What a method answers is asked for once, however often the template reads it."""
        given: list[Any] = super().get_fieldsets(request, obj)
        if obj is None or self.has_change_permission(request, obj):
            return given
        columns, moments = {field.name for field in self.opts.get_fields()}, self._moments()

        def shown(one: Any) -> Any:
            if one in moments:
                return since(one)
            is_method = isinstance(one, str) and one not in columns and hasattr(self, one)
            return cache(getattr(self, one)) if is_method else one

        return [(title, {**about, "fields": [shown(one) for one in about["fields"]]}) for title, about in given]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class ReasonForm(BaseDialogForm):
    """What every action asks for: why. It stands in the audit log."""

    reason = forms.CharField(max_length=200, widget=UnfoldAdminTextInputWidget)


def operates(request: Any, thing: Any = None) -> bool:
    """Whether this operator may act on a thing, or else on any at all: a viewer only looks.

    The site tells `operated_tenants` of each request; None is every tenant.
    """
    operated: Collection[int] | None = request.operated_tenants
    if operated is None:
        return True
    return bool(operated) if thing is None else thing.tenant_id in operated


Verb = Callable[[Any, Any, Mapping[str, Any]], str]


def verb(
    title: str,
    *,
    explanation: str,
    permission: str,
    form: type[BaseDialogForm] = ReasonForm,
    possible: Callable[[Any], object] = lambda _: True,
    initial: Callable[[Any], dict[str, Any]] = lambda _: {},
) -> Callable[[Verb], Callable[..., HttpResponse]]:
    """Make a method an action on one thing's page; its name goes into `actions_detail`.

    The method gets the thing and the form's data, makes one service call, and answers the sentence that the operator
    reads; a refusal of the service is shown instead. The dialog is a form to be sent, so that no link changes
    anything. What was done and why stands in the thing's history.

    :param permission: `app.codename`; who lacks it does not see the action and is refused.
    :param form: asks for the reason, and for what else the service needs.
    :param possible: tells whether it can be done with the thing now. If not, it is not shown, and refused if sent.
    :param initial: what the form's fields hold when it opens.
    """

    def decorate(method: Verb) -> Any:
        @wraps(method)
        def run(self: ModelAdmin, request: HttpRequest, object_id: str) -> HttpResponse:
            thing = self.get_object(request, object_id)
            if thing is None or not operates(request, thing):
                return _refused(self, request, f"There is no such {self.opts.verbose_name}, or you may only look.")
            page = reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_change", args=[object_id])
            if not possible(thing):
                messages.error(request, f"“{title}” can't be done now with {thing}.")
                return _going_to(page)
            given = form(request, object_id, data=request.POST or None, initial=initial(thing))

            def act() -> tuple[str, str]:
                said = method(self, thing, given.cleaned_data)
                self.log_change(request, thing, f"{title}: {given.cleaned_data['reason']}")
                return _list_of(self) if thing.pk is None else page, said

            return _answer(request, declared.dialog, given, page, act)

        declared = _declared(run, title, permission, explanation=explanation, form=form, submit=title)
        declared.possible = possible
        return declared

    return decorate


ListVerb = Callable[[Any, HttpRequest, Mapping[str, Any]], tuple[str, str]]


def list_verb(
    title: str, *, explanation: str, permission: str, form: type[BaseDialogForm], submit: str
) -> Callable[[ListVerb], Callable[..., HttpResponse]]:
    """Make a method an action above a list, as :func:`verb` does on a thing's page; its name goes into `actions_list`.

    The method gets the request and the form's data, and answers the page to go to and the sentence that the operator
    reads. It logs what it has done.
    """

    def decorate(method: ListVerb) -> Any:
        @wraps(method)
        def run(self: ModelAdmin, request: HttpRequest) -> HttpResponse:
            if not operates(request):
                return _refused(self, request, "You may only look.")
            given = form(request, data=request.POST or None)
            return _answer(
                request, declared.dialog, given, _list_of(self), lambda: method(self, request, given.cleaned_data)
            )

        declared = _declared(run, title, permission, explanation=explanation, form=form, submit=submit)
        return declared

    return decorate


def _declared(
    run: Callable[..., HttpResponse], title: str, permission: str, *, explanation: str, form: object, submit: str
) -> Any:
    declared = action(description=title, url_path=run.__name__.replace("_", "-"), permissions=[permission])(run)
    # The theme's buttons open a dialog where an action has one.
    declared.dialog = {"title": title, "description": explanation, "form_class": form, "form_submit_text": submit}
    return declared


def _answer(
    request: HttpRequest, dialog: Mapping[str, Any], form: BaseDialogForm, page: str, act: Callable[[], tuple[str, str]]
) -> HttpResponse:
    """Ask by the form, or do what was sent and say what came of it."""
    if not form.is_valid():
        return render(request, "unfold/helpers/dialog.html", {"dialog": dialog, "form": form})
    try:
        with transaction.atomic():
            page, said = act()
    except DomainError as refusal:
        messages.error(request, refusal.detail)
    else:
        messages.success(request, said)
    return _going_to(page)


def _list_of(window: ModelAdmin) -> str:
    return reverse(f"admin:{window.opts.app_label}_{window.opts.model_name}_changelist")


def _going_to(page: str, status: int = 200) -> HttpResponse:
    """The form is asked for and sent by a script, which follows this."""
    return HttpResponse(status=status, headers={"HX-Redirect": page})


def _refused(window: ModelAdmin, request: HttpRequest, why: str) -> HttpResponse:
    messages.error(request, why)
    return _going_to(_list_of(window), status=404)


def span(length: timedelta | float | None) -> str:
    """`3 min` of a time or of so many seconds, or a hyphen."""
    if length is None:
        return "-"
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    for unit, of_unit in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= of_unit:
            return f"{int(seconds // of_unit)} {unit}"
    return f"{seconds:.2g} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"


def ago(moment: datetime, now: datetime) -> SafeString:
    """How long ago or ahead, with the exact time where the pointer rests."""
    words = f"{span(now - moment)} ago" if moment <= now else f"in {span(moment - now)}"
    return format_html('<span class="whitespace-nowrap" title="{} UTC">{}</span>', f"{moment:%Y-%m-%d %H:%M:%S}", words)


@cache
def since(name: str, title: str | None = None) -> Callable[[Any], Any]:
    """A column of moments, as by :func:`ago`."""

    @display(
        description=title or name.removesuffix("_at").replace("_", " ").capitalize(), ordering=name, empty_value="-"
    )
    def column(row: Any) -> Any:
        moment = getattr(row, name)
        return None if moment is None else ago(moment, timezone.now())

    column.__name__ = name
    return column


def link_to(related: models.Model | None) -> str:
    """A link to a related thing's page; a hyphen where there is none."""
    if related is None:
        return "-"
    meta = related._meta  # noqa: SLF001  # Django documents _meta as public
    try:
        return link_to_page(f"{meta.app_label}_{meta.model_name}", related.pk, str(related))
    except NoReverseMatch:
        return str(related)


def link_to_page(model: str, pk: int, text: str) -> str:
    """A link to the page of one thing; `model` as in the names of the admin's addresses, `tasks_task`."""
    address = reverse(f"admin:{model}_change", args=[pk])
    return format_html('<a href="{}" class="text-primary-600">{}</a>', address, text)


def link_to_list(model: str, text: str, **filters: Any) -> str:
    """A link to a list of things, as by :func:`link_to_page`."""
    address = reverse(f"admin:{model}_changelist", query=filters)
    return format_html('<a href="{}" class="text-primary-600">{}</a>', address, text)


@cache
def linked(name: str, title: str | None = None) -> Callable[[Any], str]:
    """A column or field that links to a related thing: for `list_display`, `readonly_fields` and `fields`."""

    @display(description=title or name.replace("_", " ").capitalize())
    def link(row: Any) -> str:
        return link_to(getattr(row, name))

    link.__name__ = f"{name}_link"
    return link


class _AsWritten(json.JSONEncoder):
    """Letters of all scripts as they are."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**{**given, "ensure_ascii": False})


def as_json(value: object) -> SafeString:
    """JSON to be read by people: in lines, coloured, its letters as they were written; folded where it is long."""
    lines = json.dumps(value, indent=4).count("\n") + 1
    return format_html(
        '<details {}><summary class="cursor-pointer">{} line{}</summary>'
        '<button type="button" data-copy class="cursor-pointer underline">Copy</button>{}</details>',
        "open" if lines <= _UNFOLDED_LINES else "",
        lines,
        "s" * (lines > 1),
        prettify_json(value, _AsWritten),
    )


def start_of(text: str, length: int = 80) -> str:
    """So much of a text as a row of a list has room for."""
    return text if len(text) <= length else f"{text[: length - 1]}…"
