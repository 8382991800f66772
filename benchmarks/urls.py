"""The product's routes, and `hello`: the least that a view behind the product's authentication can do."""

from typing import Final

from django.urls import path
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from config import urls

HELLO: Final = "/api/v1/hello"


class HelloView(APIView):
    """Answers whoever holds a token, and reads nothing of what was sent."""

    def get(self, request: Request) -> Response:
        return Response({"hello": "world"})

    post = get


urlpatterns = [path(HELLO.lstrip("/"), HelloView.as_view()), *urls.urlpatterns]
handler400, handler404, handler500 = urls.handler400, urls.handler404, urls.handler500
