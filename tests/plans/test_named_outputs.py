"""What a wish names of an earlier step's result is what is handed on, and a number, a language or a kind of thing that it names is heeded."""

import pytest

from apps.plans.documents import PlanStatus
from tests.plans import manifests
from tests.plans.shelf import UNBARRED, make_plan


@pytest.mark.parametrize(
    ("intent", "param", "value"),
    [
        ("Fetch https://example.org/x and email the title to bob@example.org", "body", "{{step-1.title}}"),
        ("Fetch https://example.org/x and email its text to bob@example.org", "body", "{{step-1.text}}"),
        ("Fetch https://example.org/x and email it to bob@example.org", "body", "{{step-1.text}}"),
        ("Fetch https://example.org/x and translate the title into French", "text", "{{step-1.title}}"),
        ("Fetch https://example.org/x and analyze the sentiment of the title", "text", "{{step-1.title}}"),
        ("Transcribe /a/b.mp3 and email the transcript to bob@example.org", "body", "{{step-1.transcript}}"),
    ],
)
def test_the_output_that_is_spoken_of_is_the_one_handed_on(intent: str, param: str, value: str) -> None:
    plan = make_plan(intent, UNBARRED)

    assert plan.status == PlanStatus.READY
    assert [step.params[param] for step in plan.steps if step.params and param in step.params][-1] == value


@pytest.mark.parametrize(
    ("intent", "param"),
    [
        ("Transcribe /a/b.mp3 and email the seconds to bob@example.org", "body"),
        ("Fetch https://example.org/x and email the title and the text to bob@example.org", "body"),
        ("Resize the image /a/b.png to a height of 640 pixels", "width"),
        ("Resize the image /a/b.png to be 640 pixels high", "width"),
        ("Translate 'hi' into French or German", "target_language"),
    ],
)
def test_what_is_spoken_of_and_fits_no_param_is_replaced_by_nothing_else(intent: str, param: str) -> None:
    plan = make_plan(intent, UNBARRED)

    assert plan.status == PlanStatus.NEEDS_ESCALATION
    assert param in [one.get("param") for one in plan.missing or ()]


@pytest.mark.parametrize(("word", "doubtful"), [("directories", True), ("folders", True), ("files", False)])
def test_files_are_not_given_for_directories_without_a_word(word: str, doubtful: bool) -> None:  # a case
    plan = make_plan(f"List the {word} in /srv", manifests.bundled())

    assert any(f"speaks of {word}" in said for said in plan.assumptions) == doubtful
    assert (plan.confidence <= 0.5) == doubtful
