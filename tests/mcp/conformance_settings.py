"""The product with what the official conformance suite asks of a server under test.

Nothing else can switch this on: the product's settings have no name for it. The suite sends no credential, so every
request gets the fixture's token here; authentication and permission run as always.
"""

import os
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from config.settings import *  # noqa: F403  # the product's settings, with two additions
from config.settings import MIDDLEWARE as PRODUCT_MIDDLEWARE

ROOT_URLCONF = "tests.mcp.conformance_urls"
MIDDLEWARE = ["tests.mcp.conformance_settings.lend_token", *PRODUCT_MIDDLEWARE]


def lend_token(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    token = os.environ["CONFORMANCE_TOKEN"]

    def lend(request: HttpRequest) -> HttpResponse:
        request.META.setdefault("HTTP_AUTHORIZATION", f"Bearer {token}")
        return get_response(request)

    return lend
