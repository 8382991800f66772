"""Planning data that somebody brings is taken as it is meant, or refused in a sentence that names the place."""

import json
from pathlib import Path

import pytest

from apps.bench import planning

TOOLS = [{"name": "press_apples", "description": "Press apples.", "input_types": ["apples"], "output_types": ["juice"]}]
TEST = [{"request": "Press the apples", "nodes": ["press_apples"], "links": []}]


def folder(at: Path, *, tools: object = TOOLS, test: str | None = None) -> Path:
    (at / "tools.json").write_text(json.dumps(tools), encoding="utf-8")
    (at / "test.jsonl").write_text(json.dumps(TEST[0]) if test is None else test, encoding="utf-8")
    return at


def test_what_is_of_the_form_is_read(tmp_path: Path) -> None:
    data = planning.read(folder(tmp_path))

    assert [tool["name"] for tool in data.tools] == ["press_apples"]
    assert [(one.request, one.nodes) for one in data.test] == [("Press the apples", ("press_apples",))]
    assert data.history == ()


@pytest.mark.parametrize(
    ("tools", "test", "place"),
    [
        ({"name": "press_apples"}, None, "tools.json"),
        (5, None, "tools.json"),
        ([], None, "tools.json"),
        ([{"name": ""}], None, "tools.json, tool 1"),
        ([{"description": "Without a name."}], None, "tools.json, tool 1"),
        ([*TOOLS, "press_apples"], None, "tools.json, tool 2"),
        (TOOLS, "{", "test.jsonl, line 1"),
        (TOOLS, "\n[1]", "test.jsonl, line 2"),
        (TOOLS, '{"request": "Press"}', "test.jsonl, line 1"),
        (TOOLS, '{"request": "Press", "nodes": "press_apples"}', "test.jsonl, line 1"),
        (TOOLS, '{"request": "Press", "nodes": [], "links": [["press_apples"]]}', "test.jsonl, line 1"),
        (TOOLS, "[" * 100_000, "test.jsonl, line 1"),
    ],
)
def test_what_is_of_another_form_is_refused_with_its_place(
    tmp_path: Path, tools: object, test: str | None, place: str
) -> None:
    with pytest.raises(planning.BadData) as refusal:
        planning.read(folder(tmp_path, tools=tools, test=test))

    assert str(refusal.value).startswith(f"{tmp_path / place} is not of the form")


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(planning.BadData):
        planning.read(folder(tmp_path) / "tools.json")
