"""Finding tools by words: what counts, what is forgiven, and what is said of it."""

from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from apps.plans.selectors import search_tools
from apps.plans.shapes import CapabilityMatch
from apps.principals.tenancy import Caller
from apps.workers import services as registry
from tests.workers.factories import beat, make_manifest, register

pytestmark = pytest.mark.django_db


def tool(name: str, description: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in properties}}
    return {"name": name, "description": description, "input_schema": schema}


ANALYZE = tool("analyze_repository", "Analyze a Python codebase.", repo_path="string")
SENTIMENT = tool("analyze_sentiment", "Analyze the sentiment of a text.", text="string")
TRANSCODE = tool("transcode_video", "Convert a video into another format.", video_path="string")


def search(caller: Caller, query: str, limit: int = 20) -> list[CapabilityMatch]:
    return search_tools(query, tenant_id=caller.tenant_id, limit=limit)


def names(found: list[CapabilityMatch]) -> list[str]:
    return [one.tool_name for one in found]


@pytest.fixture
def shelf(as_kee: Caller) -> Caller:
    for worker_id, one, tag in (
        ("coder", ANALYZE, "code"),
        ("judge", SENTIMENT, "nlp"),
        ("cutter", TRANSCODE, "media"),
    ):
        register(as_kee, make_manifest(worker_id, tools=[one], capabilities=[tag]))
    return as_kee


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("Analyze the sentiment of tomatoes", ["analyze_sentiment", "analyze_repository"]),
        ("repositroy", ["analyze_repository"]),
        ("sentimant", ["analyze_sentiment"]),
        ("trnscode", ["transcode_video"]),
    ],
)
def test_tools_are_found_by_their_words_best_first_and_despite_typos(
    shelf: Caller, query: str, found: list[str]
) -> None:
    matches = search(shelf, query)

    assert names(matches) == found
    assert [one.relevance_score == 1 for one in matches] == [True, False][: len(found)]


@pytest.mark.parametrize("query", ["weather", "cat", "x1y2", ""])
def test_unknown_words_find_nothing(shelf: Caller, query: str) -> None:
    assert search(shelf, query) == []


def test_name_weighs_more_than_description(as_kee: Caller) -> None:
    register(as_kee, make_manifest("one", tools=[tool("index", "Reads documents.")], capabilities=[]))
    register(as_kee, make_manifest("two", tools=[tool("documents", "Makes an index.")], capabilities=[]))

    assert names(search(as_kee, "index")) == ["index", "documents"]


def test_names_with_digits_are_found(as_kee: Caller) -> None:
    register(as_kee, make_manifest("one", tools=[tool("s3_upload", "Stores a file."), tool("list3d", "Lists.")]))

    assert [names(search(as_kee, query, 1)) for query in ("s3_upload", "list3d")] == [["s3_upload"], ["list3d"]]


def test_only_ready_workers_are_found(as_kee: Caller) -> None:
    for number in range(7):
        register(as_kee, make_manifest(f"w{number}", tools=[SENTIMENT]))
    register(as_kee, make_manifest("many", tools=[tool(f"sentiment_{number}", "A tone.") for number in range(250)]))
    for worker_id in ("many", *(f"w{number}" for number in range(6))):
        beat(as_kee, worker_id, "degraded")

    assert [one.worker_id for one in search(as_kee, "sentiment", limit=5)] == ["w6"]
    beat(as_kee, "w3")
    assert [one.worker_id for one in search(as_kee, "sentiment", limit=5)] == ["w3", "w6"]
    with CaptureQueriesContext(connection) as queries:
        search(as_kee, "sentiment", limit=5)
    assert len(queries) == 3


def test_search_sees_every_change(shelf: Caller) -> None:
    assert search(shelf, "pictures") == []

    register(shelf, make_manifest("painter", tools=[tool("draw", "Draws pictures.")]))
    assert names(search(shelf, "pictures")) == ["draw"]
    register(shelf, make_manifest("painter", tools=[tool("draw", "Draws maps.")]))
    assert (search(shelf, "pictures"), names(search(shelf, "maps"))) == ([], ["draw"])
    registry.unregister(caller=shelf, worker_id="painter")
    assert search(shelf, "maps") == []
    with transaction.atomic():
        register(shelf, make_manifest("painter", tools=[tool("draw", "Draws maps.")]))
        assert names(search(shelf, "maps")) == ["draw"]
        transaction.set_rollback(True)
    assert search(shelf, "maps") == []
