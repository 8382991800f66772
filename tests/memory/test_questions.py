"""What is read off a question besides its words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.memory.texts import as_sought, read_question


def test_forms_names_and_pairs_of_a_question() -> None:
    question = read_question("Who wrote C++'s standard?")
    assert question.forms == [("wrote", "write"), ("wrote", "written")]
    assert {"c++", "c++'s standard", "who wrote c++'s standard"} <= set(question.names)
    assert "wrote c" in question.pairs


@pytest.mark.parametrize(
    ("question", "name", "is_proper"),
    [
        ("What did the WHO do?", "who", True),
        ("WHO budget", "who", True),
        ("What is the Who's best song?", "who", True),
        ("What is the Who's best song?", "the who", True),
        ("who", "who", True),
        ("Who?", "who", True),
        ("Who did that?", "who", False),
        ("Can you say who did that?", "who", False),
        ("the who", "who", False),
    ],
)
def test_a_name_is_known_by_its_capitals_or_as_all_that_is_asked(question: str, name: str, *, is_proper: bool) -> None:
    asked = read_question(question)
    assert name in asked.names
    assert (name in asked.proper) is is_proper


def test_of_a_long_question_only_the_beginning_is_looked_at_for_more_than_its_words() -> None:
    question = read_question("word " * 500 + "wrote")
    assert question.forms == []
    assert question.names == ["word", "word word", "word word word", "word word word word"]
    assert len(read_question(" ".join(map(str, range(500)))).pairs) == 16


@given(st.text(max_size=300))
def test_any_text_can_be_read(text: str) -> None:
    question = read_question(text)
    assert question.text == as_sought(text)
    assert len(question.names) <= 2 * 4 * 40
