"""Where everything answers: routes come from the operations that apps declare."""

from collections.abc import Callable

from django.contrib import admin
from django.http.response import HttpResponseBase
from django.urls import include, path
from django.views.generic import RedirectView
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView

from apps.core.views import patterns
from apps.mcp.views import EndpointView


def _leads_to(name: str) -> Callable[..., HttpResponseBase]:
    """An address that a person types, led to the page that is meant."""
    return RedirectView.as_view(pattern_name=name, http_method_names=["get", "head"])


urlpatterns = [
    path("", _leads_to("admin:index")),
    path("admin", _leads_to("admin:index")),
    path("api/docs", _leads_to("docs")),
    path("api/schema", _leads_to("schema")),
    path("admin/", admin.site.urls),
    path("api/schema/", SpectacularAPIView.as_view(), name="schema"),
    path("api/docs/", SpectacularSwaggerSplitView.as_view(url_name="schema"), name="docs"),
    path("mcp", EndpointView.as_view(), name="mcp"),
    path("", include("apps.console.views")),
    path("", include("apps.console.oauth")),
    path("", include("apps.console.sign_in")),
    *patterns(),
]
handler400 = "apps.core.problems.bad_request"
handler404 = "apps.core.problems.not_found"
handler500 = "apps.core.problems.defect"
