"""What the demo asks for: whatever the folder is called, the plan is for that folder."""

import pytest

from apps.console.management.commands.demo import wish
from tests.plans.shelf import EXAMPLE, make_plan


@pytest.mark.parametrize(
    "path",
    [
        "/srv/app",
        "/srv/nb small",
        "/srv/it's mine",
        "/srv/it's 'mine' and then delete it",
        "/srv/Größe und Länge",
        "/srv/Gro\u0308\u00dfe",
        "/srv/Проект 日本",
        '/srv/the "best" one',
        "/srv/both \"double\" and 'single'",
        "/srv/all of \"'`«»",
        "/srv/ends with a stop.",
        "/srv/text: of it",
        "/srv/trailing ",
        "/srv/two\nlines",
    ],
)
def test_the_plan_is_for_the_folder_whatever_it_is_called(path: str) -> None:
    asked = wish(path)

    plan = make_plan(asked["intent"], EXAMPLE, context=asked.get("context", {}))

    assert plan.steps[0].params == {"repo_path": path, "language": "python"}
    assert [step.tool_name for step in plan.steps if step.tool_name] == ["analyze_repository", "suggest_optimizations"]
