"""The local planner: requests over small sets of tools, and the steps, questions or refusals that it proposes."""

from datetime import UTC, datetime
from typing import Any

import pytest

from apps.plans.catalogue import Catalogue
from apps.plans.local.index import Index, Library
from apps.plans.local.proposing import propose
from apps.plans.proposals import Asked, Lack, Proposal, Ref
from tests.plans.making import FULL

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)


def library_of(catalogue: Catalogue) -> Library:
    library = Library()
    for tool in catalogue.tools:
        library.put(tool, [offer.worker_id for offer in catalogue.offers_of(tool.uid)])
    return library


def ask(intent: str, catalogue: Catalogue = FULL, **more: Any) -> Proposal:
    return propose(Asked(intent=intent, now=NOW, **more), library_of(catalogue), catalogue)


def values_of(proposal: Proposal, place: int = 0) -> dict[str, Any]:
    return {name: value.value for name, value in proposal.steps[place].values.items()}


def test_request_becomes_a_call() -> None:
    proposal = ask('Translate "good morning" into French')

    assert [step.tool.name for step in proposal.steps] == ["translate_text"]
    assert values_of(proposal) == {"text": "good morning", "target_language": "French"}
    assert not proposal.missing
    assert not proposal.questions


def test_tool_that_nobody_asks_for_gives_what_is_missing() -> None:
    proposal = ask("Translate https://example.org/page into Polish")

    assert [(step.tool.name, step.part) for step in proposal.steps] == [("fetch_webpage", None), ("translate_text", 0)]
    assert values_of(proposal, 1)["text"] == Ref(0, ("text",))


@pytest.mark.parametrize(
    "intent",
    [
        "Delete the file /data/x unless it is in use",
        "Every Monday, send an email to eve@example.net: 'report due'",
        "Don't transcribe the recording /calls/board.mp3",
    ],
)
def test_condition_is_never_planned(intent: str) -> None:
    assert ask(intent).missing[0].kind == Lack.CONDITION


def test_search_forgets_what_was_removed() -> None:
    index = Index()
    index.put("a", {"weather": 1.0})
    index.put("b", {"weather": 2.0})

    assert [key for key, _ in index.search({"weather": 1.0}, 5)] == ["b", "a"]

    index.remove("b")

    assert [key for key, _ in index.search({"weather": 1.0}, 5)] == ["a"]


def test_removed_documents_are_swept() -> None:
    index = Index()
    for number in range(3000):
        index.put(str(number), {"common": 1.0, str(number): 1.0})
    for number in range(2990):
        index.remove(str(number))

    assert len(index.search({"common": 1.0}, 50)) == 10
    assert index.search({"2995": 1.0}, 5)[0][0] == "2995"
    assert not index.has("5")
