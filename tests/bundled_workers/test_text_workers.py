"""The workers that read text: what it is about, and how it sounds."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.bundled_workers.pdfs import GRADIENTS, RECEIPTS
from tests.bundled_workers.processes import TOKEN, StandInHub, refusal_of, result_of, running, stand_in_hub

ABOUT_GRADIENTS = "\n".join(line for page in GRADIENTS for line in page) * 3
ABOUT_RECEIPTS = "\n".join(line for page in RECEIPTS for line in page)
INDEX = {"documents": [{"path": "/a.pdf", "text": ABOUT_GRADIENTS}, {"path": "/b.pdf", "text": ABOUT_RECEIPTS}]}
DIGEST = "ab" * 32


@pytest.fixture(scope="module")
def extractor() -> Iterator[str]:
    with running("concept_extractor.py") as worker:
        yield worker.endpoint


@pytest.fixture(scope="module")
def judge() -> Iterator[str]:
    with running("sentiment_analyzer.py") as worker:
        yield worker.endpoint


def concepts(endpoint: str, pointer: object, **more: Any) -> dict[str, Any]:
    return result_of(endpoint, "extract_concepts", {"index_pointer": pointer, **more})


def inline(document: object) -> str:
    return "inline:" + base64.urlsafe_b64encode(json.dumps(document).encode()).decode().rstrip("=")


def test_what_documents_are_about_comes_first_with_where_it_stands(extractor: str) -> None:
    found = concepts(extractor, INDEX)

    assert found["concepts"][0] == {
        "name": "Gradient descent", "relevance": 1.0, "occurrences": 12, "documents": ["/a.pdf"],
    }  # fmt: skip
    assert "neural networks" in [concept["name"].lower() for concept in found["concepts"][:4]]
    assert (found["documents_read"], found["complete"]) == (2, True)
    assert found["concepts_total"] >= len(found["concepts"])
    assert found["summary"].startswith(f"{found['concepts_total']} concepts in 2 documents: Gradient descent")


def test_every_form_of_the_same_documents_gives_the_same_concepts(extractor: str) -> None:
    expected = concepts(extractor, INDEX)

    assert concepts(extractor, inline(INDEX)) == expected
    assert concepts(extractor, inline({"result": {"structuredContent": INDEX}})) == expected


def test_an_index_is_fetched_from_the_hub_by_its_pointer() -> None:
    hub = StandInHub(answers={f"/api/v1/artifacts/{DIGEST}": [(200, INDEX)]})
    with (
        stand_in_hub(hub),
        running("concept_extractor.py", GATEHOUSE_URL=hub.url, GATEHOUSE_TOKEN=TOKEN) as worker,
    ):
        assert concepts(worker.endpoint, f"artifact:sha256-{DIGEST}")["documents_read"] == 2


def test_plain_text_is_one_document_and_no_more_concepts_come_than_asked_for(extractor: str) -> None:
    found = concepts(extractor, {"text": ABOUT_GRADIENTS}, max_concepts=1)

    assert [concept["name"] for concept in found["concepts"]] == ["Gradient descent"]
    assert found["concepts_total"] > 1


def test_text_over_the_limit_is_cut_and_the_answer_says_so(extractor: str) -> None:
    assert concepts(extractor, {"text": "word salad. " * 20_000})["complete"] is False


@pytest.mark.parametrize(
    ("pointer", "code"),
    [
        ({}, "not_an_index"),
        ({"documents": [{"path": "/a"}]}, "not_an_index"),
        ({"documents": []}, "nothing_to_do"),
        ({"text": " "}, "nothing_to_do"),
        ("file:///etc/passwd", "unknown_pointer"),
        ("artifact:1", "bad_pointer"),
        (f"artifact:sha256-{DIGEST}", "no_hub"),
        ("inline:%%", "bad_pointer"),
        ("inline:e30", "not_an_index"),
    ],
)
def test_what_is_no_index_is_refused_by_name(extractor: str, pointer: object, code: str) -> None:
    assert f": {code}: " in refusal_of(extractor, "extract_concepts", {"index_pointer": pointer})


@pytest.mark.parametrize(
    ("text", "sentiment", "keywords"),
    [
        ("AsyncGate is amazing!", "positive", ["amazing"]),
        ("This is terrible, and I hate it.", "negative", ["terrible", "hate"]),
        ("It is not bad.", "positive", ["not bad"]),
        ("The meeting is on Monday.", "neutral", []),
    ],
)
def test_a_text_is_judged_by_words_that_are_named(judge: str, text: str, sentiment: str, keywords: list[str]) -> None:
    found = result_of(judge, "analyze_sentiment", {"text": text})

    assert (found["sentiment"], found["keywords"]) == (sentiment, keywords)
    assert 0.5 <= found["confidence"] <= 1


def test_another_language_is_refused_by_name(judge: str) -> None:
    told = refusal_of(judge, "analyze_sentiment", {"text": "Das ist schön", "language": "german"})

    assert ": unknown_language: " in told


@pytest.mark.parametrize("text", ["", "x" * 100_001, None, 7])
def test_a_text_that_can_not_be_judged_is_a_tool_error(judge: str, text: object) -> None:
    assert refusal_of(judge, "analyze_sentiment", {"text": text})
