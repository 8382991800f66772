from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from mcp import Client

from config.stack.programs import bundled_worker_scripts
from tests.bundled_workers.processes import TOKEN, WORKERS, StandInHub, eventually, result_of, running, stand_in_hub

WORKER_FILES = {
    "code-analyzer": "code_analyzer.py",
    "concept-extractor": "concept_extractor.py",
    "file-scanner": "file_scanner.py",
    "optimization-suggester": "optimization_suggester.py",
    "pdf-indexer": "pdf_indexer.py",
    "sentiment-analyzer": "sentiment_analyzer.py",
}


def answers(
    worker_id: str, *, register: list[tuple[int, Any]] | None = None, beats: list[tuple[int, Any]] | None = None
) -> StandInHub:
    return StandInHub(
        answers={
            "/workers/register": register
            or [(201, {"worker_id": worker_id, "status": "ready", "effective_tier": "verified"})],
            f"/workers/{worker_id}/heartbeat": beats or [(200, {"status": "ready", "next_heartbeat_seconds": 0.1})],
        }
    )


@pytest.mark.parametrize(("worker_id", "script"), WORKER_FILES.items())
def test_a_worker_registers_its_manifest_and_beats_at_the_named_interval(worker_id: str, script: str) -> None:
    with (
        stand_in_hub(answers(worker_id)) as hub,
        running(script, GATEHOUSE_URL=hub.url + "/", GATEHOUSE_TOKEN=TOKEN) as worker,
    ):
        eventually(lambda: len(hub.requests(f"/workers/{worker_id}/heartbeat")) >= 3, "three heartbeats")
        bootstrap = result_of(worker.endpoint, "worker_bootstrap", {})

    (registration,) = hub.requests("/workers/register")
    assert registration.authorization == f"Bearer {TOKEN}"
    assert registration.body == bootstrap
    assert registration.body["endpoint"] == worker.endpoint
    beat = hub.requests(f"/workers/{worker_id}/heartbeat")[0]
    assert beat.authorization == f"Bearer {TOKEN}"
    assert beat.body == {"status": "healthy", "current_load": 0.0, "available": True}


@pytest.mark.parametrize(("worker_id", "script"), WORKER_FILES.items())
def test_the_manifest_has_the_fields_of_the_contract_in_both_protocol_generations(worker_id: str, script: str) -> None:
    async def ask(endpoint: str, mode: str) -> tuple[dict[str, Any], list[Any]]:
        async with Client(endpoint, mode=mode) as client:
            bootstrap = await client.call_tool("worker_bootstrap", {})
            assert bootstrap.structured_content is not None
            return bootstrap.structured_content, (await client.list_tools()).tools

    with running(script) as worker:
        manifest, listed = asyncio.run(ask(worker.endpoint, "auto"))
        assert asyncio.run(ask(worker.endpoint, "legacy"))[0] == manifest

    assert manifest.keys() == {
        "worker_id", "endpoint", "tools", "capabilities", "constraints", "hints", "side_effects", "trust",
    }  # fmt: skip
    assert manifest["worker_id"] == worker_id
    assert manifest["constraints"].keys() == {"max_payload_bytes", "timeout_seconds", "rate_limit_per_hour"}
    assert manifest["hints"].keys() == {"latency_band", "cost_band", "expected_runtime"}
    assert manifest["side_effects"].keys() == {"filesystem", "network", "execution"}
    published = {tool.name: (tool.input_schema, tool.output_schema) for tool in listed}
    for tool in manifest["tools"]:
        assert tool["name"] != "worker_bootstrap"
        assert tool["description"]
        assert published[tool["name"]] == (tool["input_schema"], tool["output_schema"])
        jsonschema_rs.meta.validate(tool["input_schema"])
        jsonschema_rs.meta.validate(tool["output_schema"])


def test_the_product_starts_all_of_them() -> None:
    assert [path.name for path in bundled_worker_scripts()] == sorted(WORKER_FILES.values())


def test_long_work_is_queued_and_no_worker_writes_or_runs_anything() -> None:
    hints = {}
    for worker_id, script in WORKER_FILES.items():
        with running(script) as worker:
            manifest = result_of(worker.endpoint, "worker_bootstrap", {})
            touched = {kind for kind, level in manifest["side_effects"].items() if level != "none"}
            hints[worker_id] = (manifest["hints"]["expected_runtime"], touched)
            assert set(manifest["side_effects"].values()) <= {"none", "read", "outbound"}

    assert hints == {
        "code-analyzer": ("long", {"filesystem"}),
        "concept-extractor": ("medium", {"network"}),
        "file-scanner": ("fast", {"filesystem"}),
        "optimization-suggester": ("fast", {"network"}),
        "pdf-indexer": ("long", {"filesystem"}),
        "sentiment-analyzer": ("fast", set()),
    }


def test_a_worker_serves_while_the_hub_is_away_and_registers_when_it_comes() -> None:
    hub = answers("code-analyzer")
    with stand_in_hub(hub):
        pass
    port = int(hub.url.rpartition(":")[2])

    with running("code_analyzer.py", GATEHOUSE_URL=hub.url, GATEHOUSE_TOKEN=TOKEN) as worker:
        assert result_of(worker.endpoint, "worker_bootstrap", {})["worker_id"] == "code-analyzer"
        assert hub.seen == []
        with stand_in_hub(hub, port=port):
            eventually(lambda: len(hub.requests("/workers/code-analyzer/heartbeat")) >= 1, "a heartbeat")
            assert len(hub.requests("/workers/register")) == 1


@pytest.mark.parametrize(
    "refusal", [(500, "broken"), (401, {"code": "unauthenticated"}), (429, {}), (302, b"/elsewhere"), (422, b"\xff")]
)
def test_registration_is_tried_again_until_it_is_accepted(refusal: tuple[int, Any]) -> None:
    hub = answers("code-analyzer", register=[refusal, refusal, (201, {"worker_id": "code-analyzer"})])
    with stand_in_hub(hub), running("code_analyzer.py", GATEHOUSE_URL=hub.url, GATEHOUSE_TOKEN=TOKEN):
        eventually(lambda: len(hub.requests("/workers/code-analyzer/heartbeat")) >= 1, "a heartbeat")

    assert len(hub.requests("/workers/register")) == 3
    assert hub.requests("/elsewhere") == []


def test_a_worker_says_why_it_is_not_registered_and_why_it_has_its_tier(tmp_path: Path) -> None:
    refused = (403, {"code": "missing_scope", "detail": "The token lacks\nworkers:register."})
    faults = [{"pointer": "/endpoint", "message": "is no address"}]
    invalid = (422, {"code": "invalid", "detail": "Not usable.", "errors": faults})
    taken = (201, {"effective_tier": "untrusted", "reason": "the manifest is not signed"})
    hub = answers("code-analyzer", register=[refused, refused, invalid, (500, "broken"), taken])

    with (tmp_path / "log").open("w+") as log:
        with (
            stand_in_hub(hub),
            running("code_analyzer.py", log=log, GATEHOUSE_URL=hub.url, GATEHOUSE_TOKEN=TOKEN),
        ):
            eventually(lambda: len(hub.requests("/workers/code-analyzer/heartbeat")) >= 1, "a heartbeat")
        log.seek(0)
        said = [line.strip().partition(" worker ")[2] for line in log if "regist" in line]

    again = "trying again until it is"
    assert said == [
        f"registration not accepted (403 missing_scope The token lacks workers:register.); {again}",
        f"registration not accepted (422 invalid Not usable. /endpoint is no address); {again}",
        f"registration not accepted (500); {again}",
        "registered as code-analyzer, effective tier untrusted (the manifest is not signed)",
    ]


@pytest.mark.parametrize(
    "wish",
    [
        (404, {"code": "not_found"}),
        (200, {"status": "ready", "next_heartbeat_seconds": 0.1, "register_again": True}),
    ],
)
def test_a_worker_that_the_hub_forgot_or_asks_to_registers_again(wish: tuple[int, Any]) -> None:
    beat = (200, {"status": "ready", "next_heartbeat_seconds": 0.1, "register_again": False})
    hub = answers("code-analyzer", beats=[beat, wish, beat])
    with stand_in_hub(hub), running("code_analyzer.py", GATEHOUSE_URL=hub.url, GATEHOUSE_TOKEN=TOKEN):
        eventually(
            lambda: len(hub.requests("/workers/code-analyzer/heartbeat")) >= 4,
            "heartbeats after the second registration",
        )

    assert len(hub.requests("/workers/register")) == 2


def test_a_heartbeat_that_fails_is_repeated_without_registering_again() -> None:
    beat = (200, {"status": "ready", "next_heartbeat_seconds": 0.1})
    hub = answers(
        "code-analyzer",
        beats=[beat, (503, {}), (200, "not an object"), (200, {"next_heartbeat_seconds": "soon"}), beat],
    )
    with stand_in_hub(hub), running("code_analyzer.py", GATEHOUSE_URL=hub.url, GATEHOUSE_TOKEN=TOKEN):
        eventually(lambda: len(hub.requests("/workers/code-analyzer/heartbeat")) >= 6, "six heartbeats")

    assert len(hub.requests("/workers/register")) == 1


def test_the_endpoint_told_to_the_hub_can_be_named() -> None:
    address = "https://analyzer.example.com/mcp"
    with running("code_analyzer.py", "--endpoint", address) as worker:
        assert worker.endpoint == address


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_stops_when_told_to(stop: signal.Signals) -> None:
    hub = answers("code-analyzer")
    with stand_in_hub(hub), running("code_analyzer.py", GATEHOUSE_URL=hub.url, GATEHOUSE_TOKEN=TOKEN) as worker:
        worker.process.send_signal(stop)

        assert worker.process.wait(20) in {0, -stop}


@pytest.mark.parametrize("script", ["code_analyzer.py", "sentiment_analyzer.py"])
@pytest.mark.parametrize(
    ("arguments", "url"),
    [
        (["--port", "0"], "ftp://hub.example.com"),
        (["--port", "0"], "not an address"),
        (["--port", "70000"], ""),
        (["--port", "0", "--host", "203.0.113.1"], ""),
        (["--port", "0", "--root", "/no/such/folder"], ""),
        (["--port", "many"], ""),
        ([], ""),
    ],
)
def test_a_start_that_cannot_work_ends_with_its_reason(script: str, arguments: list[str], url: str) -> None:
    ended = subprocess.run(
        [sys.executable, str(WORKERS / script), *arguments],
        env={"GATEHOUSE_URL": url, "GATEHOUSE_TOKEN": "x"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert any(word in ended.stderr for word in ("cannot start", "usage:"))
