"""Recall finds what answers a question in long conversations, without a model.

The conversations were made up for this test, and the answers to the questions written down, before anything of the
ranking was chosen.
"""

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
