"""The admin site: what an operator sees is decided by the database, request by request."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import update_wrapper
from http import HTTPStatus
from typing import Any, Final, cast

from django.conf import settings
from django.contrib.admin import ModelAdmin
from django.db import transaction
from django.db.models import Model
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.template.response import TemplateResponse
from django.urls import path
from django.utils import timezone
from unfold.admin import ModelAdmin as UnfoldModelAdmin
from unfold.sites import UnfoldAdminSite

from apps.console import home
from apps.core import notifications
from apps.core.sql import execute
from apps.principals.models import Membership, Operator
from apps.principals.tenancy import acting_as_operator, acting_as_system

View = Callable[..., HttpResponse]

_LOOKS_ONLY: Final = {"GET", "HEAD", "OPTIONS"}
# How often an open Home asks for each of its parts.
_RENEWED: Final = {"figures": timedelta(seconds=5), "charts": timedelta(minutes=1)}


class ConsoleSite(UnfoldAdminSite):  # type: ignore[misc]  # unfold has no types
    """Every request runs in one transaction: a superuser's sees all tenants, another operator's those of its
    memberships. A request that only looks runs read-only, so that no link can change anything; one that acts sees the
    tenants that its operator may do more than view.
    """

    index_title = "Home"

    def admin_view(self, view: View, cacheable: bool = False) -> View:  # noqa: FBT001, FBT002  # Django's signature
        def seeing(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            with _looking(request) if request.method in _LOOKS_ONLY else _sight_of(request):
                return _rendered(view(request, *args, **kwargs))

        guarded: View = super().admin_view(update_wrapper(seeing, view), cacheable)

        def answering(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            answer = guarded(request, *args, **kwargs)
            # A dialog can't show the login. The page that it stands on can, and comes back.
            is_over = answer.status_code == HTTPStatus.FOUND and "HX-Request" in request.headers
            return HttpResponse(headers={"HX-Refresh": "true"}) if is_over else answer

        return update_wrapper(answering, guarded)

    def register(
        self,
        model_or_iterable: type[Model] | Iterable[type[Model]],
        admin_class: "type[ModelAdmin[Any]] | None" = None,
        **options: Any,
    ) -> None:
        """Register what this project's own windows show; what a library brings for its tables is left out."""
        if admin_class is None or issubclass(admin_class, UnfoldModelAdmin):
            super().register(model_or_iterable, admin_class, **options)

    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        offered = {"offers_sign_in": bool(settings.OIDC_ISSUER)}
        answer: HttpResponse = super().login(request, {**offered, **(extra_context or {})})
        return answer

    def get_urls(self) -> list[Any]:
        # Without the transaction that other views run in: it is needed only for what is not kept.
        renewed = super().admin_view(self.renewed)
        return [path("live/<str:part>", renewed, name="live"), *super().get_urls()]

    def index(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Home. An open page renews its parts by :meth:`renewed`."""
        now = timezone.now()
        shown = {**home.live(now=now), "charts": home.drawn()}
        page: TemplateResponse = super().index(request, {**shown, **(extra_context or {})})
        return page

    def renewed(self, request: HttpRequest, part: str) -> HttpResponse:
        """A part of Home, made once a period for all who see the same tenants."""
        if part not in _RENEWED:
            raise Http404

        def made() -> bytes:
            with _looking(request):
                now = timezone.now()
                if part == "charts":
                    return JsonResponse([chart.data for chart in home.drawn()], safe=False).content
                return render(request, "console/live.html", home.live(now=now)).content

        # The wall has let in an operator.
        operator = cast("Operator", request.user)
        tenants = "all" if operator.is_superuser else sorted(_tenants_of(request, operator))
        return HttpResponse(notifications.kept(f"home:{part}:{tenants}", _RENEWED[part], made))


def _sight_of(request: Any) -> AbstractContextManager[None]:
    operator = request.user
    request.operated_tenants = set()
    if not isinstance(operator, Operator) or not operator.is_active:
        return acting_as_operator([], "console: nobody")
    if operator.is_superuser:
        request.operated_tenants = None
        return acting_as_system(f"console: {operator.username}")
    return acting_as_operator(_tenants_of(request, operator), f"console: {operator.username}")


@contextmanager
def _looking(request: HttpRequest) -> Iterator[None]:
    """The sight of a request that only looks."""
    with _sight_of(request):
        execute("set local transaction_read_only = on")
        yield
        # Ends the read-only state where this transaction is part of another.
        transaction.set_rollback(True)


def _tenants_of(request: Any, operator: Operator) -> set[int]:
    roles = dict(Membership.objects.filter(operator=operator).values_list("tenant_id", "role"))
    request.operated_tenants = {tenant for tenant, role in roles.items() if role != Membership.Role.VIEWER}
    return set(roles) if request.method in _LOOKS_ONLY else request.operated_tenants


def _rendered(response: HttpResponse) -> HttpResponse:
    """A template that were rendered after the view would query outside of the transaction."""
    return response.render() if isinstance(response, TemplateResponse) else response
