"""A Django app of somebody else, with its own database: what it defers and what it hears. Each command is a process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.conf import settings

from gatehouse_client import Client
from tests.clients.test_processes import KIT, environment
from tests.server import Server
from tests.waiters import until

pytestmark = pytest.mark.ci

SETTINGS = """
SECRET_KEY = "x"
INSTALLED_APPS = ["django.contrib.contenttypes", "gatehouse_client.django", "shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.sqlite3"}}
USE_TZ = True
"""
APPS = """
from django.apps import AppConfig


def hear(entry, **_):
    print("heard", entry.summary)
    if entry.summary == "Bad news.":
        raise ValueError("This receiver is broken.")


class ShopConfig(AppConfig):
    name = "shop"

    def ready(self):
        from gatehouse_client.django import entry_arrived

        entry_arrived.connect(hear)
"""
DEFERS = """
import django
django.setup()
from django.db import transaction
from gatehouse_client.django import defer

with transaction.atomic():
    defer(task_type="ship", params={"order": 1}, idempotency_key="order-1")
with transaction.atomic():
    defer(task_type="ship", params={"order": 2})
    transaction.set_rollback(True)
defer(task_type="no_such_type")
"""
# A Celery app finds the tasks of installed Django apps by itself.
CELERY = """
import os
from celery import Celery

app = Celery("shop", broker=os.environ["BROKER"])
app.conf.broker_transport_options = {"global_keyprefix": "django-shop-"}
app.conf.beat_schedule = {"gatehouse": {"task": "gatehouse_client.django.tasks.send", "schedule": 0.2}}
app.autodiscover_tasks()
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop_settings.py").write_text(SETTINGS)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "apps.py").write_text(APPS)
    return tmp_path


def _env(shop: Path, server: Server, token: str) -> dict[str, str]:
    env = environment(server, token) | {"PYTHONPATH": os.pathsep.join([str(shop), str(KIT / "src")])}
    return env | {"DJANGO_SETTINGS_MODULE": "shop_settings", "BROKER": settings.CELERY_BROKER_URL}


def run(shop: Path, server: Server, token: str, *words: str) -> subprocess.CompletedProcess[str]:
    env = _env(shop, server, token)
    return subprocess.run([sys.executable, *words], cwd=shop, env=env, check=False, capture_output=True, text=True)


def manage(shop: Path, server: Server, token: str, *words: str) -> str:
    done = run(shop, server, token, "-m", "django", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_app_defers_with_its_transaction_and_hears_of_the_end(
    shop: Path, server: Server, token: str, client: Client
) -> None:
    client.register_type(name="ship")
    manage(shop, server, token, "makemigrations", "--check")
    manage(shop, server, token, "migrate")

    assert run(shop, server, token, "-c", DEFERS).returncode == 0
    away = run(shop, server, "ght_wrong", "-m", "django", "gatehouse", "outbox", "--once")
    assert "Refused" in away.stderr
    for _ in range(2):
        manage(shop, server, token, "gatehouse", "outbox", "--once")

    (lease,) = client.lease(task_types=["ship"], capacity=10)
    assert lease.params == {"order": 1}
    client.complete(lease, summary="Shipped.")
    assert manage(shop, server, token, "gatehouse", "inbox", "--once") == "heard Shipped.\n"
    assert client.read().entries == []
    shown = run(shop, server, token, "-c", "import django; django.setup()\n"
        "from gatehouse_client.django.models import DeferredTask\nprint(*DeferredTask.objects.order_by('pk'), sep='|')")  # fmt: skip
    assert shown.stdout.startswith(f"ship: {lease.task_id}|no_such_type: unknown_task_type: ")


def test_celery_beat_sends_what_is_deferred(shop: Path, server: Server, token: str, client: Client) -> None:
    client.register_type(name="ship")
    manage(shop, server, token, "migrate")
    (shop / "celery_of_shop.py").write_text(CELERY)
    celery = [sys.executable, "-m", "celery", "-A", "celery_of_shop", "worker", "--beat", "--pool", "solo"]
    with subprocess.Popen(celery, cwd=shop, env=_env(shop, server, token), stderr=subprocess.DEVNULL) as worker:
        try:
            assert run(shop, server, token, "-c", DEFERS).returncode == 0
            (lease,) = until(lambda: client.lease(task_types=["ship"], capacity=10))
        finally:
            worker.terminate()
    assert lease.params == {"order": 1}


def test_entry_that_a_receiver_can_not_handle_stays_unread(
    shop: Path, server: Server, token: str, client: Client
) -> None:
    client.register_type(name="ship")
    for summary in ("Shipped.", "Bad news.", "Late."):
        client.queue(task_type="ship")
        (lease,) = client.lease(task_types=["ship"], capacity=1)
        client.complete(lease, summary=summary)

    done = run(shop, server, token, "-m", "django", "gatehouse", "inbox", "--once")

    assert done.stdout == "heard Shipped.\nheard Bad news.\n"
    assert "This receiver is broken." in done.stderr
    assert [entry.summary for entry in client.read().entries] == ["Bad news.", "Late."]
