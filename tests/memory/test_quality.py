"""Recall finds what answers a question in long conversations, without a model.

The conversations were made up for this test, and the answers to the questions written down, before anything of the
ranking was chosen.
"""

import json
from pathlib import Path

import pytest

from apps.bench import evidence
from apps.bench.evidence import Figures, MalformedData

CONVERSATIONS = Path(__file__).with_name("conversations.json")


@pytest.mark.ci
def test_the_evidence_is_found_as_often_as_promised(transactional_db: None) -> None:
    conversations = evidence.read(CONVERSATIONS)
    figures = evidence.measure(conversations)
    assert (len(figures.seconds), figures.missing) == (110, 0)
    assert Figures.share(figures.turns[5]) >= 72
    assert Figures.share(figures.turns[10]) >= 80
    assert Figures.share(figures.sessions[5]) >= 90
    assert Figures.share(figures.sessions[10]) >= 95


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"questions": [], "conversations": [{"id": 1}]}', '{"questions": 1}']
)
def test_data_of_another_form_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "data.json").write_text(text)
    with pytest.raises(MalformedData, match="is not of the form in docs"):
        evidence.read(tmp_path / "data.json")


def _data(*turns: dict[str, str], conversation: str = "c") -> str:
    told = [{"id": "c", "sessions": [{"id": "c-1", "turns": [{"speaker": "A", "text": "x"} | turn for turn in turns]}]}]
    asked = [{"conversation": conversation, "question": "x", "evidence": ["1"]}]
    return json.dumps({"conversations": told, "questions": asked})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (_data({"id": "1"}, {"id": "1"}), "The turn '1' is there more than once."),
        (_data({"id": "1"}, conversation="d"), "asks about the conversation 'd', which it does not hold."),
        (_data({"id": "1", "speaker": "A" * 101}), "no speaker of more than 100 characters"),
        (_data({"id": "1", "text": "\x00"}), "no text of more than 65,536 characters, or of signs that are none"),
        (_data({"id": "1", "text": "\ud800"}), "no text of more than 65,536 characters, or of signs that are none"),
    ],
    ids=["turns", "conversation", "speaker", "NUL", "surrogate"],
)
def test_data_that_memory_would_not_take_or_that_asks_about_nothing_is_refused_in_a_sentence(
    tmp_path: Path, text: str, reason: str
) -> None:
    (tmp_path / "data.json").write_text(text)
    with pytest.raises(MalformedData, match=reason):
        evidence.read(tmp_path / "data.json")


@pytest.mark.parametrize(
    "text",
    ["2023-05-08", "2023-05-08T00:00:00+00:00", "8 May 2023", "12:00 am on 8 May, 2023", "2023/05/08 (Mon) 00:00"],
)
def test_dates_are_read_in_several_forms(text: str) -> None:
    at = evidence.moment(text)
    assert at is not None
    assert at.isoformat() == "2023-05-08T00:00:00+00:00"


def test_a_date_in_no_known_form_is_none() -> None:
    assert evidence.moment("some day") is evidence.moment(None) is None
