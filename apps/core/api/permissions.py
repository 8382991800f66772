from typing import TYPE_CHECKING

from rest_framework.permissions import BasePermission
from rest_framework.request import Request

if TYPE_CHECKING:  # rest_framework.views imports its default permissions
    from rest_framework.views import APIView


class HoldsToken(BasePermission):
    """A valid token; the operation itself asks for the scope."""

    def has_permission(self, request: Request, view: "APIView") -> bool:
        return request.user is not None
