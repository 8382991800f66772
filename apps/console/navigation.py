"""The sidebar: the things that operators come for, then every other table, for administrators."""

from typing import Any, Final

from django.conf import settings
from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse

# Each entry by its table: its title and icon.
_ENTRIES: Final = {
    "tasks.task": ("Tasks", "checklist"),
    "tasks.queue": ("Queues", "stacks"),
    "tasks.schedule": ("Schedules", "schedule"),
    "digests.inbox": ("Inboxes", "inbox"),
    "receipts.receipt": ("Receipts", "receipt_long"),
    "plans.plan": ("Plans", "account_tree"),
    "executions.execution": ("Executions", "play_circle"),
    "workers.worker": ("Workers", "dns"),
    "memory.memory": ("Memory", "neurology"),
    "principals.principal": ("Access", "badge"),
    "admin.logentry": ("Audit", "history"),
}
# These share the entry Access, as tabs of one page.
_ACCESS: Final = {
    "principals.principal": "Principals",
    "principals.token": "Tokens",
    "oauth2_provider.application": "OAuth clients",
    "principals.operator": "Operators",
    "principals.membership": "Memberships",
    "principals.tenant": "Tenants",
}
# What operators look for in the list of tasks. What else an operator saves is kept in the browser.
_VIEWS: Final = {
    "All": "",
    "Open": "status=open",
    "Failed today": "status=failed&ended=day",
    "Dead letters": "status=dead",
    "Leased too long": "status=overdue",
    "Ended in the last hour": "ended=hour",
}


def sidebar(request: HttpRequest) -> list[dict[str, Any]]:
    """Unfold's navigation for this operator."""
    links = _links(request)
    entries = [
        {"title": title, "icon": icon, "link": links[table][1]}
        for table, (title, icon) in _ENTRIES.items()
        if table in links
    ]
    groups: list[dict[str, Any]] = [
        {"title": None, "items": [{"title": "Home", "icon": "monitoring", "link": reverse("admin:index")}, *entries]}
    ]
    if request.user.is_superuser:
        others = sorted(links.keys() - _ENTRIES.keys() - _ACCESS.keys())
        items = [{"title": links[table][0], "icon": "table", "link": links[table][1]} for table in others]
        groups.append({"title": "Internals", "collapsible": True, "separator": True, "items": items})
    return groups


def tabs(request: HttpRequest) -> list[dict[str, Any]]:
    """Unfold's tabs of the pages that share an entry."""
    links = _links(request)
    items = [{"title": title, "link": links[table][1]} for table, title in _ACCESS.items() if table in links]
    tasks = reverse("admin:tasks_task_changelist")
    views = [{"title": title, "link": f"{tasks}?{query}"} for title, query in _VIEWS.items()]
    return [{"models": list(_ACCESS), "items": items}, {"models": ["tasks.task"], "items": views}]


def _links(request: HttpRequest) -> dict[str, tuple[str, str]]:
    """The name and address of each list that this operator may see, by its table."""
    return {
        f"{app['app_label']}.{model['object_name'].lower()}": (str(model["name"]), model["admin_url"])
        for app in admin.site.get_app_list(request)
        for model in app["models"]
        if model["admin_url"]
    }


def environment(request: HttpRequest) -> list[str]:
    """The badge beside the user's name."""
    return ["Production", "danger"] if settings.PRODUCTION else ["Development", "info"]
