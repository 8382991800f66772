"""The console in a real browser: an operator logs in, looks around and finds a receipt and a task."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright
from pytest_django.live_server_helper import LiveServer

from apps.delivery.models import Target
from apps.principals.models import Operator, Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import acting_as
from tests.console.world import fill
from tests.executions import making as executions
from tests.factories import make_caller
from tests.tasks import making as tasks
from tests.waiters import until

pytestmark = [pytest.mark.ci, pytest.mark.filterwarnings("ignore::ResourceWarning")]

PASSWORD: Final = "a long enough password"
# Where to leave pictures of the pages, for a person to look at.
PICTURES: Final = os.environ.get("GATEHOUSE_SCREENSHOTS")


def _chromium() -> str:
    """The system's Chromium, installed where that can be done."""
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        for command in (["update"], ["install", "-y", "--no-install-recommends", "chromium"]):
            subprocess.run(["apt-get", "-q", *command], check=False, capture_output=True, timeout=600)
        found = shutil.which("chromium")
    if found is None:
        pytest.skip("There is no Chromium, and none can be installed here: apt install chromium")
    return found


@pytest.fixture
def browser() -> Iterator[Browser]:
    executable = _chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def stocked(transactional_db: None) -> None:
    """Before the browser, whose event loop forbids the thread to query."""
    kee = fill()
    tasks.make_type(kee, "report", queue="reports")
    tasks.queue(kee, "report")
    worker = make_caller(Tenant(pk=kee.tenant_id, slug=kee.tenant_slug), "worker-2", Kind.WORKER)
    tasks.fail(worker, tasks.lease_one(worker, queues=("reports",)), retryable=False)
    executions.run(kee, [{**executions.REPORT, "decision_required": True}])
    with acting_as(kee):
        Target.objects.update(sent=1, wasted=1)
    Operator.objects.create_superuser(username="root", password=PASSWORD)


@pytest.fixture
def page(stocked: None, live_server: LiveServer, browser: Browser) -> Iterator[Page]:
    """A page that fails the test if a script fails, anything is missing, or anything leaves this server."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.set_default_timeout(60_000)
    troubles: list[str] = []

    def hear(message: ConsoleMessage) -> None:
        if message.type == "error":
            troubles.append(f"{message.text} {message.location.get('url')}")

    def watch(request: Request) -> None:
        if not request.url.startswith((live_server.url, "data:", "blob:")):
            troubles.append(f"asked {request.url}")

    page.on("console", hear)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("request", watch)
    page.goto(f"{live_server.url}/admin/")
    page.fill("input[name=username]", "root")
    page.fill("input[name=password]", PASSWORD)
    page.click("button[type=submit]")
    page.wait_for_url(f"{live_server.url}/admin/")
    yield page
    assert troubles == []


def test_an_operator_looks_at_everything(page: Page, live_server: LiveServer) -> None:
    expect(page.get_by_text("Oldest queued")).to_be_visible()
    lists = sorted(
        {link.get_attribute("href") or "" for link in page.locator("#nav-sidebar-apps a").all()} - {"/admin/"}
    )
    assert len(lists) > 15
    for address in lists:
        answer = page.goto(f"{live_server.url}{address}")
        assert (answer and answer.status) == 200, address


# What docs/console.md shows: with GATEHOUSE_SCREENSHOTS=docs/console this test makes its pictures.
PAGES: Final = {
    "home": "",
    "tasks": "nav:Tasks",
    "task": "home:Failed in the last day, row",
    "queue": "nav:Queues, row:default",
    "execution": "home:Wait for a decision, row",
    "plan": "nav:Plans, row",
    "receipt": "nav:Receipts, row",
    "access": "nav:Access, row:Kee",
    "worker": "nav:Workers, row",
}


# Each width and each theme; the pictures of the documents need one more.
LOOKS: Final = [(390, "light"), (1300, "dark"), *([(1300, "light")] if PICTURES else [])]


def test_the_main_pages_fit_their_window_and_axe_finds_nothing(
    page: Page, live_server: LiveServer, packages: Path
) -> None:
    axe = (packages / "node_modules/axe-core/axe.min.js").read_text()
    entries = [link.get_attribute("href") or "" for link in page.locator("#nav-sidebar-apps a").all()[:12]]
    names = {f"{live_server.url}{address}": "" for address in entries}
    for address in entries:
        page.goto(f"{live_server.url}{address}")
        first = page.locator("#result_list tbody th a").first
        names |= {f"{live_server.url}{first.get_attribute('href')}": ""} if first.count() else {}
    for name, clicks in PAGES.items():
        page.goto(f"{live_server.url}/admin/")
        for click in filter(None, clicks.split(", ")):
            _follow(page, click)
        expect(page.locator("h1").first).to_be_visible()
        names[page.url] = name
    faults: list[str] = []
    for width, theme in LOOKS:
        page.set_viewport_size({"width": width, "height": 900 if width > 390 else 844})
        page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
        for url, name in names.items():
            page.goto(url)
            page.locator("html.dark" if theme == "dark" else "html:not(.dark)").wait_for(state="attached")
            # The layout follows the size, once there is one.
            expect(page.locator("h1").first).to_be_visible()
            until(lambda: page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), url)
            page.evaluate(axe)
            found = page.evaluate("axe.run()")["violations"]
            faults += [f"{one['id']} {url} {width} {theme} {one['nodes'][0]['html'][:200]}" for one in found]
            if PICTURES and name:
                kind = "phone" if width == 390 else theme
                page.screenshot(path=Path(PICTURES) / f"{name}-{kind}.png")
    assert "\n".join(faults) == ""


# What an operator comes for: what is clicked, Home first, and what is seen then.
ERRANDS: Final = [
    ("home:Failed in the last day, row", "It broke."),
    ("home:Failed in the last day, find:type:report, all, pick:retry_selected, run", "Retry 1 tasks"),
    ("home:Queued, all, pick:cancel_selected, run", "Cancel "),
    ("nav:Queues, row:default, press:Pause, send", "default is paused"),
    ("", "default (paused)"),
    ("nav:Queues, row:default", "Queued, last day"),
    ("home:Leased", "worker-1 on build-7"),
    ("nav:Workers, row, press:Approve tools, send", "Approved: "),
    ("nav:Workers, row, press:Quarantine, send", "quarantined"),
    ("nav:Access, row:Kee, press:Revoke this one, send", "has ended"),
    ("nav:Inboxes, row:Kee", "Indexed 12 files"),
    ("home:Webhooks woken for nothing", "agent.example"),
    ("nav:Receipts, row", "(this one)"),
    ("home:Wait for a decision, row, press:Accept, send", "report is decided"),
    ("nav:Audit", "ticket 7"),
]


def _follow(page: Page, click: str) -> None:
    what, _, name = click.partition(":")
    found = {
        "nav": page.locator("#nav-sidebar-apps a", has_text=name),
        "home": page.locator(f"dt:text-is('{name}') + dd a"),
        "row": page.locator("#result_list tbody th a", has_text=name),
        "all": page.locator("#action-toggle"),
        "run": page.locator("button[name=index]"),
        "press": page.get_by_text(name, exact=True),
        "send": page.locator("#dialog button[type=submit]"),
    }
    if what in {"pick", "send"}:
        page.locator("[name=reason]").last.fill("ticket 7")
    if what == "pick":
        page.select_option("select[name=action]", name)
    elif what == "find":
        page.fill("#searchbar", name)
        page.press("#searchbar", "Enter")
        page.wait_for_url("**q=**")
    else:
        found[what].first.click()


def test_an_errand_takes_four_clicks_at_most(page: Page, live_server: LiveServer) -> None:
    for clicks, seen in ERRANDS:
        _follow(page, "nav:Home")
        page.wait_for_url(f"{live_server.url}/admin/")
        for click in filter(None, clicks.split(", ")):
            _follow(page, click)
        expect(page.locator("body"), clicks).to_contain_text(seen)
        assert clicks.replace(", find:", " ").count(",") < 4


def test_an_open_page_shows_what_becomes_of_its_task_and_keeps_ticks_and_focus(page: Page) -> None:
    _follow(page, "home:Queued")
    page.locator("input.action-select").first.check()
    page.locator("#result_list tbody th a").last.focus()
    with page.expect_response(lambda answer: "x-renewal" in answer.request.headers):
        pass
    expect(page.locator(".action-counter")).to_contain_text("1 of")
    assert page.evaluate("document.activeElement.matches('#result_list th a')")
    _follow(page, "row")
    expect(page.get_by_text("Cancel the task", exact=True)).to_be_visible()
    with page.expect_popup() as opened:
        page.evaluate("void window.open(location.href)")
    other = opened.value
    _follow(other, "press:Cancel the task")
    _follow(other, "send")
    expect(page.locator(".readonly").first).to_contain_text("canceled", timeout=60_000)
    expect(page.get_by_text("Cancel the task", exact=True)).to_have_count(0)
