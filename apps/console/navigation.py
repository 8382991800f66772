"""The sidebar: every registered model in the group of its app, for whom it may show it."""

from typing import Any, Final

from django.conf import settings
from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse

# Group, and the apps whose models stand in it; what no group names stands under System.
_GROUPS: Final = {
    "Inbox": ["digests", "receipts", "delivery"],
    "Tasks": ["tasks"],
    "DeleGate": ["executions", "plans", "workers"],
    "Memory": ["memory", "handoff"],
    "Identity": ["principals", "auth"],
    "System": [],
}
_ICONS: Final = {
    "Inbox": "inbox",
    "Tasks": "checklist",
    "DeleGate": "account_tree",
    "Memory": "neurology",
    "Identity": "badge",
    "System": "settings",
}


def sidebar(request: HttpRequest) -> list[dict[str, Any]]:
    """Unfold's navigation for this operator."""
    group_of = {label: group for group, labels in _GROUPS.items() for label in labels}
    items: dict[str, list[dict[str, Any]]] = {group: [] for group in _GROUPS}
    for app in admin.site.get_app_list(request):
        group = group_of.get(app["app_label"], "System")
        items[group] += [
            {"title": str(model["name"]), "icon": _ICONS[group], "link": model["admin_url"]}
            for model in app["models"]
            if model["admin_url"]
        ]
    dashboard = {"title": "Dashboard", "icon": "monitoring", "link": reverse("admin:index")}
    return [
        {"title": None, "items": [dashboard]},
        *(
            {"title": group, "collapsible": True, "separator": True, "items": found}
            for group, found in items.items()
            if found
        ),
    ]


def environment(request: HttpRequest) -> list[str]:
    """The badge beside the user's name."""
    return ["Production", "danger"] if settings.PRODUCTION else ["Development", "info"]
