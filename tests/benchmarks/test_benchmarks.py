"""Each suite measures; data that a user brings is read, or refused in a sentence that names the place."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from apps.plans.catalogue import Catalogue, Tool
from apps.plans.documents import Step
from apps.plans.proposals import Asked, Evidence, Lack, Missing, Proposal, Value, call
from benchmarks.data import BadData, moment, read_conversations, read_planning
from benchmarks.suites import SUITES
from benchmarks.suites.planning import answer, faults, judge, tools_and_links

TOOLS = [{"name": "press_apples", "description": "Press apples.", "input_types": ["apples"], "output_types": ["juice"]}]
TEST = [{"request": "Press the apples", "nodes": ["press_apples"], "links": []}]


def folder(at: Path, *, tools: object = TOOLS, test: str | None = None) -> Path:
    (at / "tools.json").write_text(json.dumps(tools), encoding="utf-8")
    (at / "test.jsonl").write_text(json.dumps(TEST[0]) if test is None else test, encoding="utf-8")
    return at


def test_planning_data_is_read(tmp_path: Path) -> None:
    data = read_planning(folder(tmp_path))

    assert [tool["name"] for tool in data.tools] == ["press_apples"]
    assert [(one.request, one.nodes) for one in data.test] == [("Press the apples", ("press_apples",))]
    assert data.history == ()
    assert [(row.case, row.ours, row.peer) for row in tools_and_links(data)][:2] == [
        ("node F1", 0, 100),
        ("edge F1", 0, 0),
    ]


@pytest.mark.parametrize(
    ("tools", "test", "place"),
    [
        ({"name": "press_apples"}, None, "tools.json"),
        ([], None, "tools.json"),
        ([{"name": ""}], None, "tools.json"),
        ([*TOOLS, "press_apples"], None, "tools.json"),
        (TOOLS, "{", "test.jsonl, line 1"),
        (TOOLS, "\n[1]", "test.jsonl, line 2"),
        (TOOLS, '{"request": "Press", "nodes": "press_apples"}', "test.jsonl, line 1"),
        (TOOLS, '{"request": "Press", "nodes": [], "links": [["press_apples"]]}', "test.jsonl, line 1"),
        (TOOLS, "[" * 100_000, "test.jsonl, line 1"),
    ],
)
def test_planning_data_of_another_form_is_refused(tmp_path: Path, tools: object, test: str | None, place: str) -> None:
    with pytest.raises(BadData) as refusal:
        read_planning(folder(tmp_path, tools=tools, test=test))

    assert str(refusal.value).startswith(f"{tmp_path / place} is not of the form in docs/planner.md: ")


def conversation(*messages: dict[str, Any]) -> str:
    sessions = [{"id": "c-1", "messages": [{"speaker": "A", "text": "x"} | message for message in messages]}]
    questions = [{"conversation": "c", "question": "x", "evidence": ["1"]}]
    return json.dumps({"conversations": [{"id": "c", "sessions": sessions}], "questions": questions})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Invalid JSON"),
        ("[]", "Input should be an object"),
        ('{"questions": []}', "conversations: Field required"),
        (conversation({"id": "1", "text": "\ud800"}), "Invalid JSON: unexpected end of hex escape"),
    ],
)
def test_recall_data_of_another_form_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "data.json").write_text(text)
    with pytest.raises(BadData) as refusal:
        read_conversations(tmp_path / "data.json")

    assert reason in str(refusal.value)


@pytest.mark.parametrize(
    "text",
    ["2023-05-08", "2023-05-08T00:00:00+00:00", "8 May 2023", "12:00 am on 8 May, 2023", "2023/05/08 (Mon) 00:00"],
)
def test_dates_are_read_in_several_forms(text: str) -> None:
    at = moment(text)
    assert at is not None
    assert at.isoformat() == "2023-05-08T00:00:00+00:00"


def test_date_in_no_known_form_is_none() -> None:
    assert moment("some day") is moment(None) is None


def bench(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "manage.py", "bench", *arguments, "--tiny", "--json"]
    return subprocess.run(command, env=os.environ, cwd=settings.BASE_DIR, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "names", [pytest.param(["inbox"], marks=pytest.mark.ci), pytest.param([*SUITES], marks=pytest.mark.long)]
)
def test_suites_measure(names: list[str], tmp_path: Path) -> None:
    done = bench(*names, "--data", "tests/memory/conversations.json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert {row["suite"] for row in rows} == set(names)
    assert all(row["ours"] is not None for row in rows)
    subprocess.run([sys.executable, "docs/results.py", tmp_path], input=done.stdout, text=True, check=True)
    assert (tmp_path / "results.md").read_text().count("\n| ") > len(rows)
    assert "</svg>" in (tmp_path / "results.svg").read_text()


@pytest.mark.ci
def test_unknown_suite_is_refused_by_name() -> None:
    done = bench("nope")
    assert done.returncode == 2
    assert "There is no suite nope" in done.stderr


SCHEMA = {"properties": {"at": {"default": "noon"}, "public": {"default": False}}}
NOTE = {"tool": "add_note", "args": {"text": "Buy milk", "at": {"any": ["2026-11-25T08:00", "noon"]}}}
SHARE = {"tool": "share", "args": {"note": {"ref": "add_note"}, "to": ["a@x.org", "b@x.org"]}}
REQUEST = {"kind": "possible", "steps": [NOTE], "accept": [[NOTE, SHARE]]}


CATALOGUE = Catalogue(1)
ASKED = Asked(intent="Note it", now=datetime(2026, 1, 3, tzinfo=UTC))


def step(name: str, evidence: Evidence = Evidence.TYPED, number: int = 1, **values: Any) -> Step:
    uid = name.encode().hex().ljust(32, "0")
    tool = CATALOGUE.by_uid[uid] = Tool(uid=uid, name=name, description="", input_schema=SCHEMA, output_schema={})
    given = {key: Value(value=value, evidence=evidence) for key, value in values.items()}
    return call(number, tool, given, ASKED)


SHARED = step("share", number=2, note="{{step-1.id}}", to=["b@x.org", "a@x.org"])


@pytest.mark.parametrize(
    ("steps", "fault"),
    [
        ([step("add_note", text='"buy  milk."')], None),
        ([step("add_note", text="Buy milk", at="2026-11-25T08:00:00Z", public=False)], None),
        ([step("add_note", text="Buy milk"), SHARED], None),
        ([step("add_note", text="Buy milk", at="2026-11-25T09:00")], "add_note.at is '2026-11-25T09:00'"),
        ([step("add_note", text="Buy milk", public=True)], "add_note.public is True"),
        ([step("add_note")], "add_note.text is None"),
        ([step("share", text="Buy milk")], "other tools: share"),
        ([step("add_note", text="Buy milk"), step("share", note="add_note", to=[])], "share.note is 'add_note'"),
    ],
)
def test_faults_of_a_plan_are_named(steps: list[Step], fault: str | None) -> None:
    assert faults(REQUEST, steps, CATALOGUE)[:1] == ([] if fault is None else [fault])
    assert judge(REQUEST, Proposal(proposer="local", steps=steps), CATALOGUE) is (fault is None)
    assert not judge({**REQUEST, "kind": "impossible"}, Proposal(proposer="local", steps=steps), CATALOGUE)


@pytest.mark.parametrize(("param", "right"), [("text", True), ("at", False)])
def test_question_is_right_if_it_names_the_param_that_lacks(param: str, right: bool) -> None:
    plan = Proposal(proposer="local", steps=[step("add_note").model_copy(update={"missing_params": (param,)})])
    assert answer(plan) == "asked"
    assert judge({"kind": "incomplete", "steps": [NOTE], "asks": ["text"]}, plan, CATALOGUE) is right


def test_answers_are_told_apart() -> None:
    sure, cut = step("add_note", text="x"), step("add_note", Evidence.CUT, text="x")
    lack = (Missing(kind=Lack.TOOL, detail="No tool."),)
    given: list[dict[str, Any]] = [{}, {"steps": (sure,)}, {"steps": (cut,)}, {"steps": (sure,), "doubtful": True}]
    told = [answer(Proposal(proposer="local", **one)) for one in [*given, {"steps": (sure,), "missing": lack}]]
    assert told == ["refused", "ready", "confirm", "confirm", "refused"]
