"""Files and receipts: an agent that has only the one and an agent that has only the other hand over to each other."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings
from pytest_django.live_server_helper import LiveServer

from apps.handoff import files, sync, ticks
from apps.handoff.items import Kind, Priority, Refused
from apps.handoff.sync import Ask, Synced
from tests.factories import make_tenant, make_token
from tests.handoff.conftest import NOON, Hub, bodies, git, handoff, inbox_of, item, leave, make_repository
from tests.mcp.raw import modern


def synchronise(root: Path, ask: Ask) -> tuple[int, int, int]:
    """Both ways; how many went there, came from there, and were declined."""
    synced = Synced()
    sync.pull(inbox_of(root), ask, into=synced)
    sync.push(inbox_of(root), ask, recipient=None, now=NOON, into=synced)
    return len(synced.pushed), len(synced.pulled), len(synced.declined)


def tool(name: str, given: dict[str, Any], token: str) -> dict[str, Any]:
    """What an agent is answered that knows MCP and nothing else."""
    answer = modern("tools/call", {"name": name, "arguments": given}, token).json()
    told: dict[str, Any] = answer["result"]["structuredContent"]
    return told


def test_items_cross_between_files_and_mcp_once(live_server: LiveServer, root: Path) -> None:
    token = make_token(make_tenant("acme"))
    env = {"GATEHOUSE_URL": live_server.url.replace("localhost", "127.0.0.1"), "GATEHOUSE_TOKEN": token}

    def synced() -> dict[str, Any]:
        done = handoff("sync", "--json", root=root, env=env)
        assert done.returncode == 0, done.stderr
        told: dict[str, Any] = json.loads(done.stdout)
        return told

    body = "Paused at step 3.\n---\ntype: none\n\n| a |\n|---|\nNext: ünïcode\r\n"
    handoff("leave", "--type", "thread", "--priority", "high", "--session", "files-1", "-", root=root, given=body)
    assert len(synced()["pushed"]) == 1
    assert synced() == {"pushed": [], "pulled": [], "declined": []}
    (shown,) = tool("inherit", {"session": "mcp-1"}, token)["items"]
    assert (shown["body"], shown["from_session"], shown["type"]) == (body, "files-1", "thread")
    assert shown["project"] == inbox_of(root).repository.id

    tool("leave_handoff", {"session": "mcp-1", "type": "caution", "body": "Only\n\nwith a lock "}, token)
    assert len(synced()["pulled"]) == 1
    assert synced() == {"pushed": [], "pulled": [], "declined": []}
    with inbox_of(root).inherit(max_tokens=500, now=NOON) as found:
        (came,) = [one.item for one in found.shown]
    assert (came.body, came.from_session, came.kind) == ("Only\n\nwith a lock ", "mcp-1", Kind.CAUTION)

    assert synced() == {"pushed": [], "pulled": [], "declined": []}
    assert tool("inherit", {"session": "mcp-2"}, token)["items"] == []
    assert bodies(root) == []
    assert git(root, "status", "--porcelain") == ""


def test_lost_answer_of_a_push_makes_one_receipt(root: Path, hub: Hub) -> None:
    leave(root, "First\n")

    def answer_is_lost(path: str, given: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        hub.ask(path, dict(given))
        raise Refused("gone")

    with pytest.raises(Refused):
        sync.push(inbox_of(root), answer_is_lost, recipient=None, now=NOON, into=Synced())
    assert len(inbox_of(root).waiting()) == 1
    assert synchronise(root, hub.ask) == (1, 1, 0)
    assert hub.bodies("second") + bodies(root) == ["First\n"]


@pytest.mark.parametrize("answer_is_lost", [True, False])
def test_interrupted_pull_is_completed(root: Path, hub: Hub, answer_is_lost: bool) -> None:
    for body in ("First\n", "Second\n"):
        hub.leave(body=body)

    def interrupted(path: str, given: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        if "session" in given:
            if answer_is_lost:
                hub.ask(path, dict(given))
            raise Refused("gone")
        return hub.ask(path, dict(given))

    with pytest.raises(Refused):
        sync.pull(inbox_of(root), interrupted, into=Synced())
    assert bodies(root) == []
    assert len(hub.bodies()) == (0 if answer_is_lost else 2)
    assert synchronise(root, hub.ask) == (0, 2, 0)
    assert synchronise(root, hub.ask) == (0, 0, 0)
    assert sorted(bodies(root)) == ["First\n", "Second\n"]


@pytest.mark.parametrize("to", ["", "processed/", "rejected/1768046400000-"])
def test_pulled_item_is_written_once(root: Path, hub: Hub, to: str) -> None:
    hub.leave(body="First\n")
    sync.pull(inbox_of(root), hub.ask, into=Synced())
    (written,) = files.waiting(inbox_of(root).folder)
    left_behind = inbox_of(root).folder / ".pulled" / written.name
    left_behind.write_bytes(written.read_bytes())
    place = Path(f"{inbox_of(root).folder}/{to}{written.name}")
    place.parent.mkdir(parents=True, exist_ok=True)
    written.rename(place)

    assert synchronise(root, hub.ask) == (0, 0, 0)
    assert len(list(inbox_of(root).folder.rglob(f"*{written.name}"))) == 1


def test_item_that_another_reader_takes_during_a_pull_is_not_pulled(root: Path, hub: Hub) -> None:
    for body in ("First\n", "Second\n"):
        hub.leave(body=body)

    def raced(path: str, given: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        if "session" in given:
            assert hub.bodies("another", receipt_ids=given["receipt_ids"][:1]) == ["First\n"]
        return hub.ask(path, dict(given))

    assert synchronise(root, raced) == (0, 1, 0)
    assert synchronise(root, hub.ask) == (0, 0, 0)
    assert bodies(root) == ["Second\n"]


def test_item_of_another_repository_is_not_pushed(tmp_path: Path, root: Path, hub: Hub) -> None:
    there = inbox_of(make_repository(tmp_path / "other")).repository
    inbox_of(root).leave(item("First\n"), now=NOON, sender=there)
    assert synchronise(root, hub.ask) == (0, 0, 0)
    assert bodies(root) == ["First\n"]


def test_another_clone_pulls_a_pushed_item(tmp_path: Path, hub: Hub) -> None:
    here, there, other = (
        make_repository(tmp_path / name, origin=f"https://example.org/{origin}")
        for name, origin in (("here", "web"), ("there", "web"), ("other", "api"))
    )
    leave(here, "First\n", kind=Kind.THREAD, priority=Priority.HIGH)
    synchronise(here, hub.ask)
    assert synchronise(other, hub.ask) == (0, 0, 0)
    assert synchronise(there, hub.ask) == (0, 1, 0)
    assert bodies(there) == ["First\n"]


def test_refused_item_stays_and_others_are_pushed(root: Path, hub: Hub) -> None:
    large = leave(root, "x" * 20_000)
    leave(root, "Second\n")
    assert synchronise(root, hub.ask) == (1, 0, 1)
    assert [one.path for one in inbox_of(root).waiting()] == [large]


def test_unreachable_server_changes_nothing(root: Path) -> None:
    leave(root)
    done = handoff("sync", root=root, env={"GATEHOUSE_URL": "http://127.0.0.1:1", "GATEHOUSE_TOKEN": "x"})
    assert (done.returncode, done.stdout) == (2, "")
    assert "can't be reached" in done.stderr
    assert len(inbox_of(root).waiting()) == 1


def test_missing_token_or_url_is_named(root: Path) -> None:
    assert "GATEHOUSE_TOKEN" in handoff("sync", root=root).stderr
    env = {"GATEHOUSE_TOKEN": "x", "GATEHOUSE_DATA": "/nowhere"}
    assert "GATEHOUSE_URL" in handoff("sync", root=root, env=env).stderr


def test_foreign_answer_is_refused(root: Path, live_server: LiveServer) -> None:
    url = live_server.url.replace("localhost", "127.0.0.1")
    done = handoff("sync", "--url", f"{url}/livez", root=root, env={"GATEHOUSE_TOKEN": "x"})
    assert done.returncode == 2
    assert "Traceback" not in done.stderr

    def something_else(path: str, given: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        return 200, {"status": "ok"}

    leave(root)
    with pytest.raises(Refused, match="as the API does"):
        sync.pull(inbox_of(root), something_else, into=Synced())
    with pytest.raises(Refused, match="as the API does"):
        sync.push(inbox_of(root), something_else, recipient=None, now=NOON, into=Synced())
    assert len(inbox_of(root).waiting()) == 1


def test_tick_cleans_each_repository(tmp_path: Path, settings: Settings) -> None:
    roots = [make_repository(tmp_path / name) for name in ("one", "two")]
    for root in roots:
        leave(root)
        bodies(root, now=NOON)
    settings.HANDOFF_REPOSITORIES = [roots[0], tmp_path / "gone", roots[1]]

    ticks.clean_repositories()

    assert [files.waiting(inbox_of(root).past) for root in roots] == [[], []]
