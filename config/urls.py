"""Where everything answers: routes come from the operations that apps declare."""

from django.contrib import admin
from django.urls import include, path
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView

from apps.core.api.routes import patterns
from apps.mcp.api.views import EndpointView

urlpatterns = [
    path("admin/", admin.site.urls),
    path("api/schema/", SpectacularAPIView.as_view(), name="schema"),
    path("api/docs/", SpectacularSwaggerSplitView.as_view(url_name="schema"), name="docs"),
    path("mcp", EndpointView.as_view(), name="mcp"),
    path("", include("apps.console.api.urls")),
    *patterns(),
]
handler404 = "apps.core.api.problems.not_found"
handler500 = "apps.core.api.problems.defect"
