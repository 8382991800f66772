"""The registry in several processes: read when one starts, and followed from then on by each, at its next plan."""

import asyncio
import os
import subprocess
import sys
import threading
from urllib.parse import urlsplit

import pytest
from django.conf import settings
from django.db import connection

from apps.plans import shelf
from apps.principals.tenancy import Caller, acting_as
from apps.workers.services import registry as workers
from config.handlers import Application
from tests.plans.test_kept_registry import names
from tests.plans.test_lessons import NOTHING, register_plain_tools
from tests.workers.factories import make_manifest

PLANNER = """
import sys
import django; django.setup()
from apps.plans import shelf
from apps.principals.tenancy import acting_in
shelf.warm()
print("warm", flush=True)
for line in sys.stdin:
    with acting_in({tenant}, "test"), shelf.held(tenant_id={tenant}) as held:
        print(" ".join(tool.name for tool in held.ranker.catalogue.tools), flush=True)
"""


def brass(worker_id: str, tool: str) -> dict[str, object]:
    offered = {"name": tool, "description": "Polishes.", "input_schema": {"type": "object"}}
    return make_manifest(worker_id, tools=[offered], side_effects=NOTHING)


@pytest.mark.django_db(transaction=True)
def test_what_is_registered_in_one_process_is_in_the_next_plan_of_every_other(kee: Caller) -> None:
    with acting_as(kee):
        register_plain_tools(kee)
    url = urlsplit(settings.DATABASE_URL)._replace(path=f"/{connection.settings_dict['NAME']}").geturl()
    others = [
        subprocess.Popen(
            [sys.executable, "-c", PLANNER.format(tenant=kee.tenant_id)],
            cwd=settings.BASE_DIR,
            env={**os.environ, "DJANGO_SETTINGS_MODULE": "config.settings", "DATABASE_URL": url},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]

    def seen(process: subprocess.Popen[str]) -> set[str]:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        return set(process.stdout.readline().split())

    try:
        for process in others:
            assert process.stdout is not None
            assert process.stdout.readline() == "warm\n"
        before = [seen(process) for process in others]
        with acting_as(kee):
            workers.register(caller=kee, original=brass("second", "polish_brass"))
        after = [seen(process) for process in others]
        with acting_as(kee):
            workers.unregister(caller=kee, worker_id="plain")
        last = [seen(process) for process in others]
    finally:
        for process in others:
            process.communicate()

    plain = {"inspect_alder", "inspect_birch", "inspect_cedar", "inspect_maple"}
    assert before == [plain, plain]
    assert after == [{*plain, "polish_brass"}] * 2
    assert last == [{"polish_brass"}] * 2


@pytest.mark.django_db(transaction=True)
def test_a_process_that_starts_has_read_the_registry_before_the_first_plan(kee: Caller) -> None:
    with acting_as(kee):
        register_plain_tools(kee)
    shelf._registries.clear()

    shelf.warm()

    assert len(shelf._kept(kee.tenant_id).ranker.catalogue.by_uid) == 4
    with acting_as(kee):
        assert len(names(kee)) == 4


def test_a_server_begins_this_when_it_starts_and_does_not_wait_for_it() -> None:
    begun, told = threading.Event(), []
    heard = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    async def receive() -> object:
        return heard.pop(0)

    async def send(message: dict[str, str]) -> None:
        told.append(message["type"])

    application = Application(pages=None, at_start=begun.set)  # type: ignore[arg-type]  # no request comes
    asyncio.run(application({"type": "lifespan"}, receive, send))

    assert begun.wait(10)
    assert told == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
