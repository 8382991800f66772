from django.urls import path

from apps.mcp.api.views import EndpointView
from tests.mcp.conformance_fixtures import METHODS

urlpatterns = [path("mcp", EndpointView.as_view(methods=METHODS))]
