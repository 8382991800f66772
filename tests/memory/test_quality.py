"""Recall finds what answers a question in long conversations, without a model.

The conversations were made up for this test, and the answers to the questions written down, before anything of the
ranking was chosen.
"""

from pathlib import Path

import pytest

from benchmarks.data import read_conversations
from benchmarks.suites.recall import Figures, measure

CONVERSATIONS = Path(__file__).with_name("conversations.json")


@pytest.mark.ci
def test_the_evidence_is_found_as_often_as_promised(transactional_db: None) -> None:
    figures = measure(read_conversations(CONVERSATIONS))
    assert (len(figures.seconds), figures.missing) == (110, 0)
    assert Figures.share(figures.turns[5]) >= 72
    assert Figures.share(figures.turns[10]) >= 80
    assert Figures.share(figures.sessions[5]) >= 90
    assert Figures.share(figures.sessions[10]) >= 95
