"""What every declared operation owes its callers."""

import re

import pytest

from apps.core.operations import Operation, all_operations
from apps.mcp.prompts import HABITS, Habit
from apps.principals.scopes import Scope

_NAMES = {declared.name for declared in all_operations()}


@pytest.mark.parametrize("declared", all_operations(), ids=lambda declared: declared.name)
def test_operation_has_known_scopes_and_a_description(declared: Operation) -> None:
    assert declared.scopes <= set(Scope.values)
    assert len(declared.description) > 20
    assert declared.routes or declared.tool


@pytest.mark.parametrize("habit", HABITS, ids=lambda habit: habit.name)
def test_prompt_names_only_existing_tools(habit: Habit) -> None:
    text = f"{habit.text} {' '.join(habit.reads)}"
    named = set(re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", text))
    assert named <= _NAMES
