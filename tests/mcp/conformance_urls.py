import os

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import path

from apps.mcp.api.views import EndpointView
from tests.mcp.conformance_fixtures import METHODS

_endpoint = EndpointView.as_view(methods=METHODS)
_TOKEN = os.environ["CONFORMANCE_TOKEN"]


def lend_token(request: HttpRequest) -> HttpResponseBase:
    """The endpoint, with the fixture's token for a request without a credential."""
    request.META.setdefault("HTTP_AUTHORIZATION", f"Bearer {_TOKEN}")
    return _endpoint(request)


urlpatterns = [path("mcp", lend_token)]
