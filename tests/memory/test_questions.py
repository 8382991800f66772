"""What is read off a question besides its words."""

from hypothesis import given
from hypothesis import strategies as st

from apps.memory.questions import read
from apps.memory.texts import as_sought


def test_forms_names_and_pairs_of_a_question() -> None:
    question = read("Who wrote C++'s standard?")
    assert question.forms == [("wrote", "write"), ("wrote", "written")]
    assert {"c++", "c++'s standard", "who wrote c++'s standard"} <= set(question.names)
    assert "wrote c" in question.pairs


def test_of_a_long_question_only_the_beginning_is_looked_at_for_more_than_its_words() -> None:
    question = read("word " * 500 + "wrote")
    assert question.forms == []
    assert question.names == ["word", "word word", "word word word", "word word word word"]
    assert len(read(" ".join(map(str, range(500)))).pairs) == 16


@given(st.text(max_size=300))
def test_any_text_can_be_read(text: str) -> None:
    question = read(text)
    assert question.text == as_sought(text)
    assert len(question.names) <= 2 * 4 * 40
