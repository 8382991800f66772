"""The registry's routes as URL patterns: one view per path, one operation per method."""

from collections.abc import Callable
from typing import Any

from django.urls import URLPattern, path

from apps.core import operations
from apps.core.api.views import OperationView
from apps.core.api.waiting import WaitingView, WhateverIsAccepted
from apps.core.operations import Operation, Route


def patterns() -> list[URLPattern]:
    """Every declared route. The longest literal paths stand first, so that parameters never shadow them."""
    by_path: dict[str, dict[str, tuple[Operation, Route]]] = {}
    for declared in operations.all_operations():
        for route in declared.routes:
            by_path.setdefault(route.path, {})[route.method] = (declared, route)
    ordered = sorted(by_path.items(), key=lambda item: (item[0].count("{"), item[0]))
    return [_pattern(route_path, methods) for route_path, methods in ordered]


def _pattern(route_path: str, methods: dict[str, tuple[Operation, Route]]) -> URLPattern:
    name = "".join(declared.name.title().replace("_", "") for declared, _ in methods.values()) + "View"
    members = {
        "declared": methods,
        "__doc__": None,
        **{method.lower(): OperationView.answer for method in methods},
    }
    waits = any(declared.waits for declared, _ in methods.values())
    # Who could wait and does not asks the synchronous view, which refuses no more than the other.
    negotiation = {"content_negotiation_class": WhateverIsAccepted} if waits else {}
    at_once: type[OperationView] = type(name, (OperationView,), {**members, **negotiation})
    view: Callable[..., Any] = at_once.as_view()
    if waits:
        waiting: type[WaitingView] = type(name, (WaitingView,), {**members, "at_once": staticmethod(view)})
        view = waiting.as_view()
    django_path = route_path.lstrip("/").replace("{", "<str:").replace("}", ">")
    return path(django_path, view, name="-".join(declared.name for declared, _ in methods.values()))
