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
# These share an entry, as tabs of one page: that of the first one.
_TABS: Final = (
    {"tasks.queue": "Queues", "tasks.tasktype": "Task types"},
    {
        "digests.inbox": "Inboxes", "digests.thread": "Threads", "digests.source": "Sources",
        "delivery.target": "Targets", "delivery.delivery": "Deliveries",
    },
    {"workers.worker": "Workers", "workers.workersource": "Sources", "workers.signingkey": "Signing keys"},
    {"memory.memory": "Items", "memory.subject": "Subjects", "memory.session": "Sessions"},
    {
        "principals.principal": "Principals", "principals.token": "Tokens", "oauth2_provider.application": "OAuth clients",
        "principals.operator": "Operators", "principals.membership": "Memberships", "principals.tenant": "Tenants",
        "axes.accessattempt": "Failed logins",
    },
)  # fmt: skip
_BULK: Final = "tasks.bulkaction"
# What operators look for in the list of tasks.
_VIEWS: Final = {
    "All": "",
    "Open": "status=open",
    "Failed in the last day": "status=failed&ended=day",
    "Dead letters": "status=dead",
    "Leases overdue": "status=overdue",
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
        others = sorted(links.keys() - {*_ENTRIES, _BULK}.union(*_TABS))
        items = [{"title": links[table][0], "icon": "table", "link": links[table][1]} for table in others]
        groups.append({"title": "Internals", "collapsible": True, "separator": True, "items": items})
    return groups


def tabs(request: HttpRequest) -> list[dict[str, Any]]:
    """Unfold's tabs of the pages that share an entry."""
    links = _links(request)
    shared = [
        {
            "models": list(tables),
            "items": [{"title": title, "link": links[one][1]} for one, title in tables.items() if one in links],
        }
        for tables in _TABS
    ]
    tasks = reverse("admin:tasks_task_changelist")
    views = [{"title": title, "link": f"{tasks}?{query}"} for title, query in _VIEWS.items()]
    bulk = [{"title": "Bulk actions", "link": links[_BULK][1]}] if _BULK in links else []
    return [*shared, {"models": ["tasks.task", _BULK], "items": [*views, *bulk]}]


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
