"""Where everything answers: routes come from the operations that apps declare."""

from django.contrib import admin
from django.urls import path
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerView

from apps.core.api.routes import patterns
from apps.mcp.api.views import EndpointView

urlpatterns = [
    path("admin/", admin.site.urls),
    path("api/schema/", SpectacularAPIView.as_view(), name="schema"),
    path("api/docs/", SpectacularSwaggerView.as_view(url_name="schema"), name="docs"),
    path("mcp", EndpointView.as_view(), name="mcp"),
    *patterns(),
]
handler404 = "apps.core.api.problems.not_found"
handler500 = "apps.core.api.problems.defect"
