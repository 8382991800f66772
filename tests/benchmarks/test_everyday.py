"""The judge of everyday requests tells right plans and questions from wrong ones."""

from typing import Any

import pytest

from apps.plans.catalogue import Tool
from apps.plans.proposals import Evidence, Lack, Missing, Proposal, ProposedStep, Question, Ref, Value
from benchmarks.suites.planning import answer, faults, judge

SCHEMA = {"properties": {"at": {"default": "noon"}, "public": {"default": False}}}
NOTE = {"tool": "add_note", "args": {"text": "Buy milk", "at": {"any": ["2026-11-25T08:00", "noon"]}}}
SHARE = {"tool": "share", "args": {"note": {"ref": "add_note"}, "to": ["a@x.org", "b@x.org"]}}
REQUEST = {"kind": "possible", "steps": [NOTE], "accept": [[NOTE, SHARE]]}


def step(name: str, evidence: Evidence = Evidence.TYPED, **values: Any) -> ProposedStep:
    tool = Tool(uid=f"notes/{name}", name=name, description="", input_schema=SCHEMA, output_schema={})
    return ProposedStep(tool=tool, values={key: Value(value=value, evidence=evidence) for key, value in values.items()})


SHARED = step("share", note=Ref(0, ("id",)), to=["b@x.org", "a@x.org"])


@pytest.mark.parametrize(
    ("steps", "fault"),
    [
        ([step("add_note", text='"buy  milk."')], None),
        ([step("add_note", text="Buy milk", at="2026-11-25T08:00:00Z", public=False)], None),
        ([step("add_note", text="Buy milk"), SHARED], None),
        ([step("add_note", text="Buy milk", at="2026-11-25T09:00")], "add_note.at is '2026-11-25T09:00'"),
        ([step("add_note", text="Buy milk", public=True)], "add_note.public is True"),
        ([step("add_note")], "add_note.text is None"),
        ([step("share", text="Buy milk")], "other tools: notes/share"),
        ([step("add_note", text="Buy milk"), step("share", note="add_note", to=[])], "share.note is 'add_note'"),
    ],
)
def test_faults_of_a_plan_are_named(steps: list[ProposedStep], fault: str | None) -> None:
    assert faults(REQUEST, steps)[:1] == ([] if fault is None else [fault])
    assert judge(REQUEST, Proposal(proposer="local", steps=tuple(steps))) is (fault is None)
    assert not judge({**REQUEST, "kind": "impossible"}, Proposal(proposer="local", steps=tuple(steps)))


@pytest.mark.parametrize(("param", "right"), [("text", True), ("at", False), (None, False)])
def test_question_is_right_if_it_names_the_param_that_lacks(param: str | None, right: bool) -> None:
    plan = Proposal(proposer="local", steps=(step("add_note"),), questions=(Question(step=0, param=param, text="?"),))
    assert answer(plan) == "asked"
    assert judge({"kind": "incomplete", "steps": [NOTE], "asks": ["text"]}, plan) is right


def test_answers_are_told_apart() -> None:
    sure, cut = step("add_note", text="x"), step("add_note", Evidence.CUT, text="x")
    lack = (Missing(kind=Lack.TOOL, detail="No tool."),)
    given: list[dict[str, Any]] = [{}, {"steps": (sure,)}, {"steps": (cut,)}, {"steps": (sure,), "doubtful": True}]
    told = [answer(Proposal(proposer="local", **one)) for one in [*given, {"steps": (sure,), "missing": lack}]]
    assert told == ["refused", "ready", "confirm", "confirm", "refused"]
