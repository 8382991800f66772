"""Health and metrics: what stands, what does not, how to mend it, and that every figure moves."""

import json
import os
import secrets
import sys
from collections.abc import Iterator
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import redis
from django.conf import settings
from django.core.management import call_command
from django.db import transaction
from django.test import Client
from prometheus_client import REGISTRY
from redis.backoff import NoBackoff
from redis.retry import Retry

from apps.console import health, metrics, selectors
from apps.core import notifications
from apps.core.sql import execute
from apps.digests import services as inboxes
from apps.plans import services as plans
from apps.plans.shapes import CreatePlan
from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.tasks.models import Queue
from tests import remote as remotes
from tests.commands import Ended, run, with_database
from tests.console.world import fill
from tests.delivery.conftest import STORED, deliver, make_remote, move_away
from tests.digests.makers import post, post_grouped, read
from tests.factories import T0, make_caller, make_tenant, make_token
from tests.remote import says


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """No sign of life is there from another test, and none is left to one."""
    broker = notifications.broker()
    broker.delete("gatehouse:heartbeats")
    yield
    broker.delete("gatehouse:heartbeats")


@pytest.fixture
def no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    dead = redis.Redis(host="127.0.0.1", port=1, retry=Retry(NoBackoff(), 0))
    monkeypatch.setattr(notifications, "broker", lambda: dead)


def readyz() -> tuple[int, dict[str, Any]]:
    answer = Client().get("/readyz")
    body = answer.json()
    return answer.status_code, {check["part"]: check for check in body["checks"]} | {"status": body["status"]}


def test_a_living_process_says_so_without_asking_anybody(no_broker: None) -> None:
    assert Client().get("/livez").json() == {"status": "alive"}


def test_ready_without_beat_is_degraded_and_with_it_ready(db: None) -> None:
    status, checks = readyz()
    assert (status, checks["status"], checks["beat"]["ok"]) == (200, "degraded", False)

    notifications.heartbeat("beat")
    notifications.heartbeat("worker core@here")
    assert (readyz()[0], readyz()[1]["status"]) == (200, "ready")


def test_without_the_broker_it_is_degraded(db: None, no_broker: None) -> None:
    status, checks = readyz()
    assert (status, checks["status"], checks["broker"]["ok"]) == (200, "degraded", False)
    assert not {"beat", "worker"} & checks.keys()
    assert "REDIS_URL" in checks["broker"]["mend"]
    assert checks["database"]["ok"]


def test_with_a_table_before_the_wall_it_is_not_ready(db: None) -> None:
    execute("set local role none")
    execute("alter table plans_plan no force row level security")
    assert readyz()[1]["migrations"]["says"] == "1 ended half-way"


def test_the_doctor_finds_the_test_stack_well_once_beat_lives(db: None) -> None:
    call_command("sync_schedules", stdout=StringIO())
    notifications.heartbeat("beat")
    notifications.heartbeat("worker")
    out = StringIO()
    call_command("doctor", "--json", stdout=out)
    report = json.loads(out.getvalue())
    assert report["well"]
    assert [f for f in report["findings"] if not f["ok"] and f["part"] != "eviction"] == []


def test_without_a_migration_it_is_not_ready(db: None, no_broker: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_shipped", lambda: frozenset({("memory", "9999_not_there")}))
    status, checks = readyz()
    assert (status, checks["migrations"]["says"]) == (503, "1 not applied")
    out = StringIO()
    with pytest.raises(SystemExit):
        call_command("doctor", stdout=out)
    assert "FAIL migrations" in out.getvalue()
    assert "late broker" in out.getvalue()
    assert "Start Redis or Valkey" in out.getvalue()
    assert "manage.py sync_schedules" in out.getvalue()


def test_metrics_speak_prometheus_and_name_no_tenant(tenant: object) -> None:
    answer = Client().get("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain")
    text = answer.content.decode()
    assert "gatehouse_tasks_ready 0.0" in text
    assert 'gatehouse_targets_wasted{kind="webhook"} 0.0' in text
    assert "acme" not in text


def test_queues_of_one_name_share_their_gauges(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selectors, "_QUEUES_SHOWN", 1)
    for slug in ("acme", "globex"):
        fill(slug)
    text = Client().get("/metrics").content.decode()
    assert 'gatehouse_queue_ready{queue="default"} 2.0' in text
    assert 'gatehouse_queue_leased{queue="default"} 2.0' in text
    assert 'gatehouse_queue_latency_seconds{quantile="0.99",queue="default"}' in text
    assert "globex" not in text
    with acting_as_system("test"):
        Queue.objects.filter(name="default").update(paused_at=T0)
    text = Client().get("/metrics").content.decode()
    assert 'gatehouse_queue_ready{queue="default"} 0.0' in text
    assert 'gatehouse_queue_oldest_ready_seconds{queue="default"} 0.0' in text


def _counted(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


@pytest.mark.django_db(transaction=True)
def test_the_inbox_counts_what_happens_in_it_once_it_has_happened() -> None:
    kee = make_caller(make_tenant("acme"), "Kee")
    names = {
        "posted": ("gatehouse_receipts_posted_total", {"source": "github"}),
        "opened": ("gatehouse_threads_opened_total", {}),
        "snapshots": ("gatehouse_snapshots_total", {"reason": "immediate"}),
        "merges": ("gatehouse_snapshot_merges_total", {}),
        "size": ("gatehouse_snapshot_receipts_sum", {}),
        "shown": ("gatehouse_receipt_delivery_seconds_count", {}),
    }
    before = {what: _counted(name, **labels) for what, (name, labels) in names.items()}

    with acting_as(kee):
        post_grouped(kee, "pr:1", flush_class="immediate")
        transaction.set_rollback(True)
    with acting_as(kee):
        first = post_grouped(kee, "pr:1", flush_class="immediate")
        post_grouped(kee, "pr:1", flush_class="immediate")
        for _ in range(2):
            inboxes.mark_delivered(receipt_pks=[first.id], now=T0 + timedelta(minutes=2))

    grown = {what: _counted(name, **labels) - before[what] for what, (name, labels) in names.items()}
    assert grown == {"posted": 2, "opened": 1, "snapshots": 2, "merges": 1, "size": 3, "shown": 1}


def test_metrics_ask_for_the_token_that_is_set(db: None, settings: Any) -> None:
    settings.METRICS_TOKEN = "scrape"
    assert Client().get("/metrics").status_code == 401
    assert Client().get("/metrics", headers={"Authorization": "Bearer scrape"}).status_code == 200


def test_production_refuses_a_login_role_that_no_wall_binds(
    db: None, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    unbound = health.Finding(part="login role", ok=False, says="postgres is not bound", mend="Use a plain one.")
    monkeypatch.setattr(health, "_login_role", lambda: unbound)
    monkeypatch.setattr(health, "_postgresql", lambda: health.Finding(part="postgresql", ok=True, says="18"))
    settings.PRODUCTION = True
    (error,) = health.refuse_unfit_servers(databases=["default"])
    assert (error.id, error.hint) == ("console.E001", "Use a plain one.")
    assert health.refuse_unfit_servers(databases=None) == []


@pytest.mark.ci
def test_production_refuses_a_database_that_knows_no_small_letters() -> None:
    url, name = os.environ["DATABASE_URL"], f"small_{secrets.token_hex(4)}"
    with psycopg.connect(url, autocommit=True) as server:
        server.execute("set role none")
        server.execute(f"create database {name} template template0 encoding 'UTF8' locale_provider libc locale 'C'")
        try:
            checked = _manage(
                "check", "--database", "default",
                DATABASE_URL=urlsplit(url)._replace(path=f"/{name}").geturl(),
            )  # fmt: skip
        finally:
            server.execute(f"drop database {name}")
    assert checked.returncode != 0
    assert "locale: encoding UTF8, the small letters of IÀŐŽΔЖԱ are iÀŐŽΔЖԱ" in checked.stderr
    assert "builtin_locale 'C.UTF-8'" in checked.stderr


def _manage(*arguments: str, **environment: str) -> Ended:
    production = {"GATEHOUSE_ENV": "production", "GATEHOUSE_HOSTS": "localhost", "GATEHOUSE_METRICS_TOKEN": "scrape"}
    return run(sys.executable, "manage.py", *arguments, env=with_database(**production, **environment))


@pytest.mark.ci
def test_the_deployment_checks_are_clean_in_production() -> None:
    checked = _manage("check", "--deploy", "--fail-level", "WARNING")
    assert checked.returncode == 0, checked.stderr
    # The one: codes are sent by http to programs on a person's own machine.
    assert settings.SILENCED_SYSTEM_CHECKS == ["oauth2_provider.W008"]
    assert "no issues (1 silenced)" in checked.stdout


def counted() -> dict[str, float]:
    """How often each has counted, under whatever labels."""
    return {
        str(metric): sum(
            sample.value
            for family in metric.collect()
            for sample in family.samples
            if sample.name.endswith(("_total", "_count"))
        )
        for metric in metrics.counters()
    }


@pytest.mark.django_db(transaction=True)
def test_a_day_moves_every_figure(tenant: Tenant, kee: Caller) -> None:
    before = counted()

    buffer_and_look(tenant, kee)
    repeat(tenant)
    plans.plan_request(caller=kee, given=CreatePlan(intent="Analyze the codebase at /repo"), now=T0)
    send_elsewhere(tenant, kee)

    assert len(before) >= 10
    assert [name for name, times in counted().items() if times == before[name]] == []


def buffer_and_look(tenant: Tenant, kee: Caller) -> None:
    with acting_as(kee):
        for _ in range(2):
            post_grouped(kee, flush_class="immediate")
        (entry,) = read(kee).entries
    headers = {"Authorization": f"Bearer {make_token(tenant)}"}
    assert Client().get(f"/api/v1/inbox/entries/{entry.ref}/expand", headers=headers).status_code == 200


def repeat(tenant: Tenant) -> None:
    token = make_token(tenant, "ci", Kind.SERVICE, source_systems=["ci"])
    receipt = {"recipient_ai": "Kee", "source_system": "ci", "dedupe_key": "ci:build:1:v1", "summary": "Built."}
    for status in (201, 409):
        answer = Client().post(
            "/api/v1/receipts", receipt, content_type="application/json", headers={"X-Service-Token": token}
        )
        assert answer.status_code == status


def send_elsewhere(tenant: Tenant, kee: Caller) -> None:
    lee, manager = make_caller(tenant, "Lee"), make_caller(tenant, "Manager", Kind.DELEGATE)
    with remotes.serving(says(200, STORED)) as remote:
        make_remote(kee, remote.url)
        move_away(kee, lee)
        with acting_as(manager):
            post(lee, poster=manager, surface="ledger", event_type="plan_created")
        deliver()


def test_counts_of_all_processes_are_summed(db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    for number in (2, 3):
        program = f"from apps.core.metrics import Counter; Counter('tried', 'Tried.').inc({number})"
        assert run(sys.executable, "-c", program, env=dict(os.environ)).returncode == 0
    assert b"\ntried_total 5.0\n" in metrics.exposition()
