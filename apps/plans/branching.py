"""A step for each of several values that a request names alike (of 'good' and 'bad', in /a and /b), and for each what goes on from there."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from apps.plans.clauses import Clause
from apps.plans.layout import Branch, Draft
from apps.plans.slots import Axis, Filling, Ref, Several, places


@dataclass(slots=True)
class Rows:
    """The drafts that do the same with other values, by their first one's key and by the values that they are for."""

    _of: dict[int, dict[frozenset[tuple[Axis, int]], Draft]] = field(default_factory=dict)
    _row: dict[int, int] = field(default_factory=dict)

    def put(self, draft: Draft) -> None:
        """Take a draft in, under its first one."""
        self._row[draft.key] = draft.row
        self._of.setdefault(draft.row, {})[frozenset(draft.branch.items())] = draft

    def stand_in(self, draft: Draft, row: int) -> None:
        """Let a row stand for a draft that has nothing left to do."""
        self._row[draft.key] = row

    def branches(self, key: int) -> list[Branch]:
        """For what values there are drafts like this one."""
        return [draft.branch for draft in self._of[self._row[key]].values()]

    def like(self, key: int, branch: Branch) -> Draft:
        """The draft like this one that is for what a branch is for."""
        drafts = self._of[self._row[key]].values()
        return next(draft for draft in drafts if draft.branch.items() <= branch.items())


def branches_of(filling: Filling, rows: Rows) -> list[Branch]:
    """For what combinations of values a call is to be made: those of the steps that it goes on from, and its own."""
    found: list[Branch] = [{}]
    for key in sorted(filling.refs):
        found = _crossed(found, rows.branches(key))
    for several in filling.several.values():
        found = _crossed(found, [{several.axis: place} for place in several.values])
    return found


def _crossed(some: Sequence[Branch], others: Sequence[Branch]) -> list[Branch]:
    """All of the one with all of the other that agree on what both tell."""
    pairs = itertools.product(some, others)
    return [
        {**one, **other} for one, other in pairs if all(one.get(axis, place) == place for axis, place in other.items())
    ]


def for_branch(filling: Filling, branch: Branch, rows: Rows) -> Filling:
    """A filling with the values of a branch."""
    params, provenance, spans = dict(filling.params), dict(filling.provenance), set(filling.spans)
    for name, several in filling.several.items():
        one = several.values[branch[several.axis]]
        params[name], provenance[name] = one.value, dict(one.provenance)
        spans = (spans - _spans(several)) | ({one.span} if one.span is not None else set())
    for name, value in filling.params.items():
        if isinstance(value, Ref):
            like = rows.like(value.key, branch)
            params[name], provenance[name] = Ref(like.key, value.path), {**provenance[name], "key": like.key}
    return replace(filling, params=params, provenance=provenance, spans=spans)


def _spans(several: Several) -> set[int]:
    return {one.span for one in several.values.values() if one.span is not None}


def take_branch(draft: Draft, clauses: Sequence[Clause], before: Sequence[Draft]) -> None:
    """Tell of a step that has run for what values it was: its own, and those of the steps that it went on from.

    :param before: what has run before it.
    """
    step = draft.done
    ran = {one.done.step_id: one for one in before if one.done is not None}
    found: dict[Axis, int] = {}
    for name, told in (step.provenance or {}).items() if step is not None else ():
        if told.get("source") == "step" and told.get("step_id") in ran:
            found.update(ran[told["step_id"]].branch)
        for clause in clauses:
            if told.get("source") == "literal" and clause.number == told.get("clause"):
                where = places(draft.filling.params.get(name), clause)
                # Of a value that stands in two rows it can't be told which it was for: then the call is made again.
                found.update(where if len(where) == 1 else {})
    draft.branch = found
    like = (one for one in before if one.tool.uid == draft.tool.uid and one.branch.keys() == found.keys())
    draft.first = next((one.row for one in like if found and one.branch != found), None)


def row_before(drafts: Sequence[Draft], place: int) -> Iterator[Draft]:
    """The drafts of the row right before the one that a draft is of."""
    row = drafts[place].row
    before = next((one.row for one in reversed(drafts[:place]) if one.row != row), None)
    return (one for one in drafts[:place] if one.row == before)
