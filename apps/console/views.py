"""Where a supervisor, a load balancer and Prometheus ask. None of them has a token, so none sees a name."""

import secrets

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_LATEST

from apps.console import health, metrics


@require_safe
@never_cache
def livez(request: HttpRequest) -> JsonResponse:
    """This process answers. Says nothing of what it stands on: restarting it would not mend that."""
    return JsonResponse({"status": "alive"})


@require_safe
@never_cache
def readyz(request: HttpRequest) -> JsonResponse:
    """200 when requests can be served, 503 when not; each part with what it says."""
    findings = health.readiness()
    ready = all(finding.ok for finding in findings if finding.needed)
    well = all(finding.ok for finding in findings)
    document = {
        "status": "ready" if well else "degraded" if ready else "unready",
        "checks": [
            {"part": finding.part, "ok": finding.ok, "says": finding.says}
            | ({} if finding.ok else {"mend": finding.mend})
            for finding in findings
        ],
    }
    return JsonResponse(document, status=200 if ready else 503)


@require_safe
@never_cache
def prometheus(request: HttpRequest) -> HttpResponse:
    """The product's counters and gauges. With GATEHOUSE_METRICS_TOKEN set, only for who presents it."""
    wanted = settings.METRICS_TOKEN
    given = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if wanted and not secrets.compare_digest(given.encode(), wanted.encode()):
        return HttpResponse(status=401, headers={"WWW-Authenticate": 'Bearer realm="metrics"'})
    return HttpResponse(metrics.exposition(), content_type=CONTENT_TYPE_LATEST)


urlpatterns = [
    path("livez", livez, name="livez"),
    path("readyz", readyz, name="readyz"),
    path("metrics", prometheus, name="metrics"),
]
