from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bundled_workers.processes import TOKEN, Drip, StandInHub, refusal_of, result_of, running, stand_in_hub

DIGEST = "ab" * 32
ARTIFACT_PATH = f"/api/v1/artifacts/{DIGEST}"
REGISTERED: dict[str, list[tuple[int, Any]]] = {
    "/workers/register": [(201, {"worker_id": "optimization-suggester"})],
    "/workers/optimization-suggester/heartbeat": [(200, {"status": "ready", "next_heartbeat_seconds": 60})],
}
ANALYSIS: dict[str, Any] = {
    "repo_path": "/code",
    "issues": [
        {"path": "b.py", "line": 9, "kind": "dead_code", "severity": "low", "message": "unused import 'os'"},
        {"path": "a.py", "line": 1, "kind": "oversized_file", "severity": "medium", "message": "900 lines in one file"},
        {"path": "a.py", "line": 5, "kind": "complex_function", "severity": "high", "message": "f is complex"},
        {"path": "a.py", "line": 5, "kind": "long_function", "severity": "medium", "message": "f is long"},
        {"path": "c.py", "line": 4, "kind": "nested_loops", "severity": "medium", "message": "Three loops deep"},
        {"path": "c.py", "line": 1, "kind": "something_new", "severity": "low", "message": "unknown to the rules"},
    ],
    "hotspots": [
        {"path": "a.py", "function": "f", "line": 5, "complexity": 30},
        {"path": "a.py", "function": "g", "line": 50, "complexity": 3},
    ],
    "duplicates": [
        {
            "lines": 12,
            "places": [{"path": "a.py", "line": 1, "function": "h"}, {"path": "b.py", "line": 2, "function": "i"}],
        }
    ],
}


@pytest.fixture(scope="module")
def suggester() -> Iterator[str]:
    """A suggester that knows no hub."""
    with running("optimization_suggester.py") as worker:
        yield worker.endpoint


@pytest.fixture(scope="module")
def hub() -> Iterator[StandInHub]:
    with stand_in_hub(StandInHub(answers={path: list(answers) for path, answers in REGISTERED.items()})) as hub:
        yield hub


@pytest.fixture(scope="module")
def connected(hub: StandInHub) -> Iterator[str]:
    """A suggester that may fetch artifacts from the hub."""
    with running("optimization_suggester.py", GATEHOUSE_URL=hub.url, GATEHOUSE_TOKEN=TOKEN) as worker:
        yield worker.endpoint


def suggest(endpoint: str, pointer: object, mode: str = "auto") -> dict[str, Any]:
    return result_of(endpoint, "suggest_optimizations", {"analysis_pointer": pointer}, mode=mode)


def refusal(endpoint: str, pointer: object) -> str:
    return refusal_of(endpoint, "suggest_optimizations", {"analysis_pointer": pointer})


def inline(document: object) -> str:
    return "inline:" + base64.urlsafe_b64encode(json.dumps(document).encode()).decode().rstrip("=")


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_suggestions_are_ranked_by_impact(suggester: str, mode: str) -> None:
    answer = suggest(suggester, ANALYSIS, mode)

    found = [(s["impact"], s["kind"], s["path"], s["line"]) for s in answer["suggestions"]]
    assert found == [
        ("high", "complex_function", "a.py", 5),
        ("high", "nested_loops", "c.py", 4),
        ("medium", "duplicate_code", "a.py", 1),
        ("medium", "oversized_file", "a.py", 1),
        ("low", "dead_code", "b.py", 9),
    ]
    assert answer["suggestions_count"] == 5
    assert answer["summary"] == "5 suggestions, 2 of high impact; first: Split f along its branches"
    assert all(s["title"] and s["rationale"] and s["effort"] for s in answer["suggestions"])


def test_every_form_of_the_same_analysis_gives_the_same_suggestions(suggester: str) -> None:
    expected = suggest(suggester, ANALYSIS)

    assert suggest(suggester, inline(ANALYSIS)) == expected
    assert suggest(suggester, "inline:" + json.dumps(ANALYSIS)) == expected
    assert suggest(suggester, inline({"result": {"structuredContent": ANALYSIS}})) == expected


def test_an_analysis_without_findings_gives_no_suggestions(suggester: str) -> None:
    assert suggest(suggester, {"issues": []}) == {
        "summary": "The analysis gives no reason for a change",
        "suggestions_count": 0,
        "suggestions": [],
    }


def test_the_analyzers_own_answer_is_understood(suggester: str) -> None:
    with running("code_analyzer.py") as analyzer:
        folder = str(Path(__file__).resolve().parents[2] / "examples")
        analysis = result_of(analyzer.endpoint, "analyze_repository", {"repo_path": folder})

    answer = suggest(suggester, inline(analysis))

    assert answer["suggestions_count"] >= 0
    assert answer["summary"]


@pytest.mark.parametrize("form", ["artifact:{}", "artifact:sha256:{}", "artifact://{}"])
def test_an_artifact_is_fetched_from_the_hub_with_the_workers_token(hub: StandInHub, connected: str, form: str) -> None:
    hub.answers[ARTIFACT_PATH] = [(200, ANALYSIS)]

    answer = suggest(connected, form.format(DIGEST))

    assert answer == suggest(connected, ANALYSIS)
    assert hub.requests(ARTIFACT_PATH)[-1].method == "GET"
    assert hub.requests(ARTIFACT_PATH)[-1].authorization == f"Bearer {TOKEN}"


def test_a_redirect_of_the_hub_is_not_followed(hub: StandInHub, connected: str) -> None:
    hub.answers[ARTIFACT_PATH] = [(302, f"{hub.url}/elsewhere".encode())]

    assert "answered 302" in refusal(connected, f"artifact:{DIGEST}")
    assert hub.requests("/elsewhere") == []


@pytest.mark.parametrize("status", [401, 403, 404, 500])
def test_a_refusal_of_the_hub_is_passed_on(hub: StandInHub, connected: str, status: int) -> None:
    hub.answers[ARTIFACT_PATH] = [(status, {"code": "refused"})]

    assert f"answered {status}" in refusal(connected, f"artifact:{DIGEST}")


def test_an_artifact_over_the_limit_is_refused(hub: StandInHub, connected: str) -> None:
    hub.answers[ARTIFACT_PATH] = [(200, b" " * 30_000_000)]

    assert "over the limit" in refusal(connected, f"artifact:{DIGEST}")


def test_an_artifact_that_drips_ends_at_the_time_limit(hub: StandInHub, connected: str) -> None:
    hub.answers[ARTIFACT_PATH] = [(200, Drip())]

    assert "did not deliver" in refusal(connected, f"artifact:{DIGEST}")


@pytest.mark.parametrize(
    ("content", "code"),
    [
        *((content, "not_json") for content in (b"", b"\xff\xfe", b"{", b"[" * 200_000)),
        *((content, "not_an_analysis") for content in (b"[]", b'"text"', b"null")),
    ],
)
def test_an_artifact_that_is_no_analysis_is_refused_by_name(
    hub: StandInHub, connected: str, content: bytes, code: str
) -> None:
    hub.answers[ARTIFACT_PATH] = [(200, content)]

    assert f"Error executing tool suggest_optimizations: {code}: " in refusal(connected, f"artifact:{DIGEST}")


def test_a_hub_that_is_away_is_named_as_the_reason(tmp_path: Path) -> None:
    gone = StandInHub()
    with stand_in_hub(gone):
        pass
    with running("optimization_suggester.py", GATEHOUSE_URL=gone.url, GATEHOUSE_TOKEN=TOKEN) as worker:
        assert "could not be asked" in refusal(worker.endpoint, f"artifact:{DIGEST}")


def test_artifacts_need_a_hub(suggester: str) -> None:
    assert "knows no hub" in refusal(suggester, f"artifact:{DIGEST}")


@pytest.mark.parametrize(
    ("pointer", "reason"),
    [
        ("file:/etc/passwd", "'file' are not followed"),
        ("file:///etc/passwd", "'file' are not followed"),
        ("/etc/passwd", "are not followed"),
        ("http://127.0.0.1:1/x", "'http' are not followed"),
        ("https://example.com/x", "'https' are not followed"),
        ("s3:bucket/key", "'s3' are not followed"),
        ("", "are not followed"),
        ("inline:", "are not followed"),
        ("inline:%%%", "does not hold base64url"),
        ("inline:é", "does not hold base64url"),
        (inline("text"), "not a code analysis"),
        (inline({"issues": [{"path": 1, "kind": "x"}]}), "issues.0.path"),
        (inline({"issues": [{"path": "a", "kind": "x", "line": -1}]}), "issues.0.line"),
        ("artifact:", "64 hexadecimal digits"),
        (f"artifact:../../{DIGEST}", "64 hexadecimal digits"),
        (f"artifact:{DIGEST}/../x", "64 hexadecimal digits"),
        (f"artifact:{DIGEST}?a=b", "64 hexadecimal digits"),
        ({}, "not a code analysis"),
        ({"issues": "none"}, "issues"),
    ],
)
def test_other_pointers_are_refused_with_their_reason(suggester: str, pointer: object, reason: str) -> None:
    assert reason in refusal(suggester, pointer)


@pytest.mark.parametrize(
    "arguments", [{}, {"analysis_pointer": 7}, {"analysis_pointer": None}, {"analysis_pointer": []}]
)
def test_wrong_arguments_are_a_tool_error(suggester: str, arguments: dict[str, Any]) -> None:
    assert refusal_of(suggester, "suggest_optimizations", arguments)


def test_only_the_best_suggestions_of_many_are_listed(suggester: str) -> None:
    issues = [
        {"path": f"m{n}.py", "line": n, "kind": "long_function", "severity": "medium", "message": "long"}
        for n in range(5_000)
    ]

    answer = suggest(suggester, {"issues": issues})

    assert (answer["suggestions_count"], len(answer["suggestions"])) == (5_000, 50)
