"""DeleGate's planner: an intent and a catalogue in, a Plan out. No model, no clock, no chance: the same request gives the same bytes.

Clauses find tools, tools find their params, what is missing is looked for one or two steps back, and what cannot be found is said.
A refusal is a valid plan whose only step escalates, with what is missing, the nearest candidates and the best partial plan.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from apps.core.lexical import words
from apps.plans import branching, kinds, lexicon, references, shapes, sorts
from apps.plans.accounting import CONCEPTS_OF_SPANS, Account, Finding, Gap
from apps.plans.branching import Rows
from apps.plans.catalogue import GENTLE_EFFECTS, Catalogue, Pool, Tool
from apps.plans.choosing import Choice, Memo, choose_tools
from apps.plans.clauses import Clause, read, restricts
from apps.plans.documents import Plan, PlanStatus, Step, can_be_told
from apps.plans.history import KEPT
from apps.plans.layout import Branch, Draft, HandedOn, Layout, has_independent_steps, longest_way, plain, resolved
from apps.plans.offers import Priority, choose, lacks_room, payload_bytes
from apps.plans.ranking import Candidate, Ranker
from apps.plans.shapes import WORKER_STEPS, StepType
from apps.plans.slots import Scene, Source, fill, source_path, takes_wish
from apps.plans.suggestions import POSSIBLE, Suggested
from apps.plans.validation import Limits, validate
from apps.workers.shapes import OfferView as Offer

NOTHING_SUGGESTED: Final = Suggested()
PLANNER_VERSION: Final = "13"
REFUSED: Final = 0.35

_MAX_TOOLS: Final = 12
_MAX_CLAUSES: Final = 40
_MAX_MENTIONS: Final = 200
_CHAIN_DEPTH: Final = 2
_LINKED: Final = 0.5
_NEAREST: Final = 5
_CEILING: Final = 0.95
_LEARNED_CEILING: Final = 0.99
_UNSERVED: Final = 0.6
"""By what the words' confidence in a partial plan falls with each part of the request that no tool serves."""
_NAMED: Final = 0.7
"""How likely a tool is whose worker another one has named."""
_DOUBT: Final = 0.03
_DOUBTFUL: Final = 0.5
"""How sure a plan is at most whose assumptions say that something else may have been meant."""
_UNSERVED_KINDS: Final = frozenset({"capability", "permission"})
_ADVICE: Final = {
    "param": "Supply it, register an MCP worker that can do it, or change the request.",
    "capability": "Register an MCP worker that can do it, or change the request.",
    "permission": "Register another worker that can do it, or change the request.",
    "condition": "Change the request.",
    "confidence": "Say it in other words, or name what is to be used.",
    "limit": "Ask for less at once, or change the request.",
    "budget": "Allow more, register an MCP worker that asks for less, or ask for less.",
    "time": "Allow more, register an MCP worker that takes less, or ask for less.",
}
"""What helps, by the kind of what is missing first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A step that ran to its end under the plan before, with its tool, offered now or not."""

    step: Step
    tool: Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """What a plan that takes another's place keeps of it, and what it must not do again."""

    replaces: str
    number: int
    after: int
    """The highest number of a step so far; new steps are numbered from there on."""
    done: tuple[Done, ...] = ()
    open_clauses: frozenset[int] = frozenset()
    """The parts of the intent that had steps which are still to be done."""
    failed: tuple[Mapping[str, Any], ...] = ()
    """Tools of workers that are not used again: worker_id, tool_name, reason."""
    away: frozenset[str] = frozenset()
    """Workers that cannot be reached just now."""
    handed_on: HandedOn | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked, by whom, when, and under which bounds."""

    plan_id: str
    delegate_id: str
    principal_ai: str
    intent: str
    created_at: str
    context: Mapping[str, Any] = field(default_factory=dict)
    scope: str | None = None
    excluded_workers: frozenset[str] = frozenset()
    limits: Limits = field(default_factory=Limits)
    priority: Priority = Priority.BALANCED
    memory_ids: tuple[int, ...] = ()
    receipt_ids: tuple[str, ...] = ()
    concept_names: tuple[str, ...] = ()
    constraints: Mapping[str, Any] | None = None
    delegation_path: tuple[str, ...] = ()
    """The keys of the DeleGates that the wish has come through, this one last: what a DeleGate that is asked next must know."""
    revision: Revision | None = None
    suggested: Suggested = NOTHING_SUGGESTED
    """What a model said where the plan would have gaps."""


def plan(request: Request, ranker: Ranker, memo: Memo | None = None, pool: Pool | None = None) -> Plan:
    """Return the plan for a request: one that can be carried out, or one that says honestly why there is none.

    :param memo: what was chosen by this ranker for this pool before; it makes a plan sooner, never another one.
    :param pool: whose workers are planned with; None: all.
    """
    work = _Work(request, ranker, memo, pool)
    work.decode()
    work.fill_all()
    if not work.missing:
        work.take_offers()
    if not work.missing and work.confidence() < REFUSED:
        work.miss("confidence", "The words of the request fit the tools too weakly.")
    if work.missing or not work.drafts:
        return work.refusal()
    made = work.ready()
    problems = validate(made.document(), work.catalogue, limits=request.limits)
    for problem in problems:
        kind = {"budget": "budget", "time": "time"}.get(problem.code, "limit")
        work.miss(kind, f"{problem.path}: {problem.message}")
    return work.refusal() if problems else made


class _Work:
    """One request being planned."""

    def __init__(self, request: Request, ranker: Ranker, memo: Memo | None, pool: Pool | None) -> None:
        self.request = request
        self.memo = memo
        self.ranker = ranker
        self.revision = request.revision
        failed, away = (self.revision.failed, self.revision.away) if self.revision else ((), frozenset())
        reasons = {(one["worker_id"], one["tool_name"]): f"it failed before: {one['reason']}" for one in failed}
        offered = ranker.catalogue.within(pool)
        self.catalogue: Catalogue = offered.without(request.excluded_workers | away, reasons)
        self.reading = read(request.intent)
        self.clauses = self.reading.clauses
        self.salt = hashlib.blake2b(request.intent.encode("utf-8", "replace"), digest_size=16).hexdigest()
        self.drafts: list[Draft] = []
        self.wishes: list[Clause] = []
        self.asides: list[Clause] = []
        self.missing: list[dict[str, Any]] = []
        self.nearest: list[dict[str, Any]] = []
        self.rejected: list[float] = []
        self.learned: float | None = None
        self.assumptions: list[str] = []
        self.is_doubtful = False
        self.served: frozenset[int] = frozenset()
        self.homes: frozenset[int] = frozenset()
        self._next_key = 0

    def miss(self, kind: str, detail: str, **more: Any) -> None:
        """Note one thing that stands between the request and a plan."""
        self.missing.append({"kind": kind, "detail": detail[:2000], **more})

    # Clauses to tools.

    def decode(self) -> None:
        """Let each clause be explained by a tool, by the synthesis at the end, or be named as missing."""
        if self._is_too_long():
            return
        self._set_aside()
        self._take_over()
        self._hand_on()
        begun = bool(self.drafts)
        choice = self._choice(begun=begun)
        chosen = [
            self._draft(one.tool, one.clause, one.p, one.alternatives)
            for one in choice.chosen
            if one.clause.number not in self.served
        ]
        self._put_in(chosen)
        self.wishes, self.rejected, self.learned = choice.wishes, choice.rejected, choice.confidence
        self.assumptions.extend(f"{said} {clause.text[:200]}" for said, clause in choice.remarks)
        self.asides = [clause for _, clause in choice.remarks if restricts(clause)]
        for clause, found in choice.unmatched:
            if clause.number not in self.served and not self._take_suggested(clause, found):
                self._unmatched(clause, found)
        self._ask_for_what_is_left({clause.number for clause, _ in choice.unmatched})
        if len(self.drafts) > _MAX_TOOLS:
            self.miss("limit", f"The request needs {len(self.drafts)} tools; {_MAX_TOOLS} are the most for one plan.")
        if not self.drafts and not self.missing:
            self.miss(
                "capability",
                "The request names nothing that a registered tool does.",
                clause=self.request.intent[:2000],
            )

    def _put_in(self, chosen: Sequence[Draft]) -> None:
        """After what is done, in the order that was chosen; what was handed on stands where it was asked for."""
        handed_on = [draft for draft in self.drafts if draft.handed_on]
        self.drafts = [draft for draft in self.drafts if not draft.handed_on]
        for draft in chosen:
            while handed_on and handed_on[0].clause.number < draft.clause.number:
                self.drafts.append(handed_on.pop(0))
            self.drafts.append(draft)
        self.drafts += handed_on

    def _choice(self, *, begun: bool) -> Choice:
        """What is chosen, or was for just such a request."""
        memo = self.memo if self.revision is None and not self.request.excluded_workers else None
        known = memo.find(self.reading) if memo is not None else None
        if known is not None:
            return known
        made = choose_tools(self.reading, self.ranker, self.catalogue, begun=begun)
        if memo is not None:
            memo.keep(self.reading, made)
        return made

    def _take_over(self) -> None:
        """What ran to its end stays as it was: it serves its clause, and later steps may take its result."""
        if self.revision is None:
            return
        for one in self.revision.done:
            place = one.step.clause or 0
            draft = self._draft(
                one.tool, self.clauses[min(place, len(self.clauses) - 1)], one.step.confidence or _CEILING
            )
            draft.done, draft.asked = one.step, one.step.clause is not None
            draft.filling.params = dict(one.step.params or {})
            branching.take_branch(draft, self.clauses, self.drafts)
            self.drafts.append(draft)
        served = {one.step.clause for one in self.revision.done if one.step.clause is not None}
        self.served = frozenset(served) - self.revision.open_clauses

    def _hand_on(self) -> None:
        """A worker that another has named takes on what that one could not do, if it may be used and takes a wish."""
        one = self.revision.handed_on if self.revision else None
        if one is None or one.clause >= len(self.clauses):
            return
        asked = read(one.intent).clauses[:1]
        able = [tool for tool in self._tools_of(one.worker_id) if takes_wish(tool)]
        if not asked or not able:
            return
        near = {tool.uid: self.ranker.probability(asked[0], tool.uid) for tool in able}
        best = min(able, key=lambda tool: (-near[tool.uid], tool.uid))
        draft = self._draft(best, self.clauses[one.clause], max(near[best.uid], _NAMED))
        draft.handed_on = one
        self.drafts.append(draft)
        self.served |= {one.clause}
        self.assumptions.append(f"{one.worker_id} is asked, as was suggested: {one.intent[:200]}")

    def _tools_of(self, worker_id: str) -> list[Tool]:
        uids = sorted(self.catalogue.tools_of(worker_id))
        return [
            self.catalogue.by_uid[uid]
            for uid in uids
            if any(offer.worker_id == worker_id for offer in self.catalogue.open_offers(uid))
        ]

    def _take_suggested(self, clause: Clause, found: Sequence[Candidate]) -> bool:
        """Of the tools that are possible anyway a model may name the one that is meant, if it changes nothing."""
        uid = self.request.suggested.tools.get(clause.text)
        for one in found:
            gentle = self.ranker.profiles[one.tool.uid].gentle and clause.verb not in lexicon.MUTATING
            if one.tool.uid == uid and one.p >= POSSIBLE and gentle:
                self.drafts = [draft for draft in self.drafts if draft.clause.number != clause.number or draft.done]
                self.drafts.append(self._draft(one.tool, clause, one.p))
                self.drafts.sort(key=lambda draft: (draft.done is None, draft.clause.number, draft.key))
                self.assumptions.append(f"A model takes this for {one.tool.name}: {clause.text[:200]}")
                return True
        return False

    def _ask_for_what_is_left(self, named: Collection[int]) -> None:
        """What the plan before had a tool for asks for one still, however little it says."""
        left = self.revision.open_clauses if self.revision else frozenset()
        served = {draft.clause.number for draft in self._to_do()}
        for clause in self.clauses:
            if clause.number in left - served - set(named):
                self._unmatched(clause, ())

    def _done_before(self, draft: Draft) -> list[Draft]:
        """What of the plan before has run with a draft's tool for the same part of the request."""
        place = (draft.tool.uid, draft.clause.number)
        return [one for one in self.drafts if one.done and one.asked and (one.tool.uid, one.clause.number) == place]

    def _set_aside(self) -> None:
        """Say what is ruled out, and what no plan can hold."""
        for clause in self.clauses:
            if clause.forbidden:
                self.assumptions.append(f"Nothing is done that this rules out: {clause.text[:200]}")
            elif clause.conditional:
                self.miss(
                    "condition", f"A plan has no conditions and no schedules: {clause.text[:200]}", clause=clause.text
                )

    def _is_too_long(self) -> bool:
        for kind, many, most in (
            ("parts", len(self.clauses), _MAX_CLAUSES),
            ("exact mentions", sum(len(clause.spans) for clause in self.clauses), _MAX_MENTIONS),
        ):
            if many > most:
                self.miss("limit", f"The request has {many} {kind}; {most} are the most for one plan.")
                return True
        return False

    def _draft(self, tool: Tool, clause: Clause, p: float, alternatives: Sequence[Candidate] = ()) -> Draft:
        self._next_key += 1
        return Draft(key=self._next_key, tool=tool, clause=clause, p=p, alternatives=alternatives)

    def _unmatched(self, clause: Clause, found: Sequence[Candidate]) -> None:
        barred = self.ranker.barred(clause, self.catalogue)
        if barred and barred[0].p >= KEPT:
            tool = barred[0].tool
            why = self._why_barred(tool)
            self.miss(
                "permission",
                f"{tool.name} could do this, but may not be used: {why}",
                clause=clause.text,
                tool_name=tool.name,
            )
        else:
            self.miss("capability", f"No registered tool does this: {clause.text[:500]}", clause=clause.text)
        ranked = sorted([*found, *barred], key=lambda one: (-one.p, -one.score, one.tool.uid))
        self.nearest.extend(self._candidate(one, clause) for one in ranked[:_NEAREST])

    def _why_barred(self, tool: Tool) -> str:
        reasons = {self.catalogue.bar(offer) or "" for offer in self.catalogue.offers_of(tool.uid)}
        return "; ".join(sorted(reasons)) or "no worker offers it"

    def _candidate(self, one: Candidate, clause: Clause) -> dict[str, Any]:
        offers = self.catalogue.offers_of(one.tool.uid)
        found: dict[str, Any] = {
            "tool_name": one.tool.name,
            "tool_uid": one.tool.uid,
            "score": one.p,
            "clause": clause.text,
        }
        if offers:
            found["worker_id"] = offers[0].worker_id
        if one.tool.description:
            found["description"] = one.tool.description[:500]
        found["reason"] = "fits too weakly" if self.catalogue.open_offers(one.tool.uid) else self._why_barred(one.tool)
        return found

    # Params, one or two steps back.

    def fill_all(self) -> None:
        """Fill every draft's params in order; put producers of what is missing before them."""
        to_do, wanted = self._to_do(), list[Draft]()
        self.homes = frozenset(draft.clause.number for draft in self.drafts)
        self.drafts = [draft for draft in self.drafts if draft.done is not None]
        for draft in to_do:
            if self._is_left(draft):
                wanted.append(draft)
                self._place(draft, depth=0)
                for name in draft.filling.missing:
                    self._miss_param(draft, name)
        self._branch_out()
        self._order()
        account = Account(
            clauses=self.clauses,
            asides=self.asides,
            drafts=self.drafts,
            ranker=self.ranker,
            catalogue=self.catalogue,
        )
        for found in account.findings(wanted):
            self._note(found)

    def _note(self, found: Finding) -> None:
        if isinstance(found, Gap):
            told = {"clause": found.clause} if found.clause is not None else {}
            self.miss(found.kind, found.detail, **told)
        else:
            self.assumptions.append(found.text)
            self.is_doubtful = self.is_doubtful or found.is_doubtful

    def _is_left(self, draft: Draft) -> bool:
        """Is there anything to do that was not done under the plan before: at all, or for another of several values?"""
        before = self._done_before(draft)
        if not before:
            return True
        filling = fill(draft.tool, self._scene(draft))
        wanted = branching.branches_of(filling, self._rows(self.drafts))
        return not all(any(one.branch == branch for one in before) for branch in wanted)

    def _rows(self, drafts: Iterable[Draft]) -> Rows:
        rows = Rows()
        for draft in drafts:
            rows.put(draft)
        return rows

    def _branch_out(self) -> None:
        """Make each call once for each of the values that the request names alike."""
        rows, made = Rows(), list[Draft]()
        for draft in self.drafts:
            if draft.done is not None:
                rows.put(draft)
                made.append(draft)
                continue
            branches = self._branches(draft, rows)
            before = self._done_before(draft) if draft.asked else []
            left = [branch for branch in branches if not any(one.branch == branch for one in before)]
            if len(made) + len(left) > _MAX_TOOLS:
                self.miss("limit", f"The request needs more than {_MAX_TOOLS} steps, which are the most for one plan.")
                left = left[:1]
            made.extend(self._for_each(draft, left, rows, before))
        self.drafts = made

    def _branches(self, draft: Draft, rows: Rows) -> list[Branch]:
        """For what values a call is made; what changes the world is called once."""
        if self.ranker.profiles[draft.tool.uid].gentle:
            self._judge_values(draft)
        else:
            draft.filling.several = {}
            if any(len(rows.branches(key)) > 1 for key in draft.filling.refs):
                self.miss(
                    "capability",
                    f"{draft.tool.name} does this with one result, not with several: {draft.clause.text[:500]}",
                    clause=draft.clause.text,
                )
        return branching.branches_of(draft.filling, rows)

    def _judge_values(self, draft: Draft) -> None:
        """Values that are named alike are neither ruled out elsewhere nor, as far as can be seen, meant together."""
        alike = [one.value for several in draft.filling.several.values() for one in several.values.values()]
        forbidden = {span.value for clause in self.clauses if clause.forbidden for span in clause.spans}
        for value in forbidden.intersection(alike):
            self.miss("condition", f"{value[:500]} is both asked for and ruled out.")
        if alike and not lexicon.TOGETHER.isdisjoint(draft.clause.words):
            self.assumptions.append(
                f"{draft.tool.name} is called for each of several values, which may be meant together."
            )
            self.is_doubtful = True

    def _for_each(
        self, draft: Draft, branches: Sequence[Branch], rows: Rows, before: Sequence[Draft]
    ) -> Iterator[Draft]:
        whole = draft.filling
        if not branches:
            rows.stand_in(draft, before[0].row)
        notes = [one.note for several in whole.several.values() for one in several.values.values()]
        self.assumptions.extend(note for note in notes if note and note not in whole.notes)
        for number, branch in enumerate(branches):
            one = draft if not number else self._draft(draft.tool, draft.clause, draft.p, draft.alternatives)
            one.asked, one.handed_on, one.branch = draft.asked, draft.handed_on, branch
            one.first = before[0].row if before else None if one is draft else draft.row
            one.filling = branching.for_branch(whole, branch, rows)
            rows.put(one)
            yield one

    def _miss_param(self, draft: Draft, name: str) -> None:
        detail = f"{draft.tool.name} needs {name}, and nothing in the request or in an earlier step gives it."
        if not can_be_told(self.request.context.get(name)):
            detail = (
                f"{draft.tool.name} needs {name}; what the context gives has no exact form in a plan. Give it as text."
            )
        schema = draft.tool.inputs.get(name, {})
        told = {"schema": schema} if can_be_told(schema) else {}
        self.miss("param", detail, tool_name=draft.tool.name, param=name, clause=draft.clause.text, **told)

    def _place(self, draft: Draft, *, depth: int) -> None:
        draft.filling = fill(draft.tool, self._scene(draft))
        for name in draft.filling.missing:
            producer = self._producer(draft, name, depth) if depth < _CHAIN_DEPTH else None
            if producer is not None:
                self.drafts.append(producer)
                draft.filling = fill(draft.tool, self._scene(draft))
        if depth == 0 and not self._is_there_already(draft):
            self.drafts.append(draft)
            self.assumptions.extend(draft.filling.notes)

    def _is_there_already(self, draft: Draft) -> bool:
        """Whether an earlier part has led to the very call, where nothing is changed: to make it twice tells nothing new."""
        same = [
            earlier
            for earlier in self.drafts
            if earlier.done is None
            and (earlier.tool.uid, earlier.filling.params) == (draft.tool.uid, draft.filling.params)
        ]
        if not same or any(map(self._changes_things, [draft, *self.drafts])):
            return False
        same[0].asked = True
        return True

    def _scene(self, draft: Draft) -> Scene:
        spent = frozenset(number for earlier in self.drafts for number in earlier.filling.spans)
        alike = {one.key for one in self._done_before(draft)}
        sources = [self._source(earlier) for earlier in self.drafts if earlier.key not in alike]
        asked = tuple(clause for clause in self.clauses if not clause.forbidden)
        is_gentle = self.ranker.profiles[draft.tool.uid].gentle
        if not is_gentle:
            asked = (draft.clause,)  # what changes the world acts only on what its own clause names
        return Scene(
            clause=draft.clause,
            clauses=asked,
            context=self.request.context,
            wish=self._wish(draft.clause),
            handed_on=draft.handed_on.intent if draft.handed_on else None,
            sources=sources,
            spent=spent,
            is_gentle=is_gentle,
            delegation_path=self.request.delegation_path,
            suggested={
                param: value
                for (clause, tool_name, param), value in self.request.suggested.params.items()
                if (clause, tool_name) == (draft.clause.text, draft.tool.name)
            },
        )

    def _wish(self, clause: Clause) -> str:
        """What is to be served by the steps of a clause, in the words of the asker, for a tool that takes a wish."""
        if self.homes <= {clause.number}:
            return self.request.intent.strip()
        ruled_out = [other.written for other in self.clauses if other.forbidden]
        return "; ".join([clause.written, *ruled_out])

    def _source(self, draft: Draft) -> Source:
        about = frozenset(lexicon.concepts(draft.tool.name)) | frozenset(lexicon.concepts_of(draft.tool.outputs))
        return Source(key=draft.key, tool=draft.tool, concepts=about)

    def _producer(self, draft: Draft, param: str, depth: int) -> Draft | None:
        """Find a gentle tool that bears the missing param and can itself be filled from what was said."""
        for tool in self._producers(draft, param):
            made = self._draft(tool, draft.clause, draft.p)
            made.asked = False
            before = list(self.drafts)
            self._place(made, depth=depth + 1)
            if not made.filling.missing and self._is_grounded(made, draft):
                self.assumptions.extend(made.filling.notes)
                self.assumptions.append(f"{tool.name} comes first: {draft.tool.name} needs its {param}.")
                return made
            self.drafts = before
        return None

    def _producers(self, draft: Draft, param: str) -> list[Tool]:
        used = {earlier.tool.uid for earlier in self.drafts} | {draft.tool.uid}
        able = [
            tool
            for tool in self.ranker.producers(param, self.clauses, self.catalogue)
            if tool.uid not in used
            and self.ranker.profiles[tool.uid].gentle
            and source_path(draft.tool, param, self._bare_source(tool))
        ]
        near = {tool.uid: self.ranker.probability(draft.clause, tool.uid) for tool in able}
        exact = {tool.uid: param in tool.outputs for tool in able}
        named = {sorts.of_file(span) for span in draft.clause.spans}
        other = {tool.uid: named.isdisjoint(words(f"{tool.name} {tool.description}")) for tool in able}
        return sorted(able, key=lambda tool: (not exact[tool.uid], other[tool.uid], -near[tool.uid], tool.uid))[
            :_NEAREST
        ]

    def _bare_source(self, tool: Tool) -> Source:
        return self._source(
            Draft(key=0, tool=tool, clause=Clause(number=0, text="", verb=None, head=(), rest=(), words=()), p=0)
        )

    def _is_grounded(self, made: Draft, target: Draft) -> bool:
        """A step that nobody asked for must at least work on something that the request names."""
        if (made.filling.is_grounded or made.filling.refs) and not self._is_any_text(made, target):
            return True
        said = frozenset().union(*(_spoken_of(clause) for clause in self.clauses))
        return bool((self.ranker.profiles[made.tool.uid].name - self.ranker.profiles[target.tool.uid].name) & said)

    def _is_any_text(self, made: Draft, target: Draft) -> bool:
        """Would it only bear some text or other, where the target asks for some text?"""
        wanted = [
            name for name in target.filling.missing if source_path(target.tool, name, self._bare_source(made.tool))
        ]
        return bool(wanted) and all(words(name)[-1:] and words(name)[-1] in lexicon.TEXTUAL for name in wanted)

    # Order.

    def _order(self) -> None:
        """Data makes hard edges, and so do explicit words and effects; mere mention only hints."""
        for place, draft in enumerate(self.drafts):
            row = list(branching.row_before(self.drafts, place))
            self._keep_apart(draft, self.drafts[:place])
            alike = [one for one in self.drafts[max(place - 1, 0) : place] if one.row == draft.row]
            for before in (*row, *alike):
                if before.key not in draft.filling.refs and self._must_follow(before, draft):
                    draft.after.add(before.key)
            draft.hints = {
                earlier.key
                for earlier in self.drafts[:place]
                if earlier.row != draft.row
                and earlier.key not in draft.parents
                and self._may_follow(earlier, draft, is_next=earlier in row)
            }

    def _keep_apart(self, draft: Draft, earlier: Sequence[Draft]) -> None:
        """Nothing runs beside what changes the world: it waits for all before it, and all after it waits for it."""
        above = {one.key: one.parents for one in earlier}
        for before in reversed(earlier):
            apart = self._changes_things(before) or self._changes_things(draft)
            if apart and before.row != draft.row and before.key not in _reached(draft.parents, above):
                draft.after.add(before.key)

    def _must_follow(self, before: Draft, draft: Draft) -> bool:
        said = draft.clause.after_previous and before.clause.number != draft.clause.number
        return said or self._changes_things(before) or self._changes_things(draft)

    def _may_follow(self, earlier: Draft, draft: Draft, *, is_next: bool) -> bool:
        """As past plans with both tools handed on; without such, each follows the one mentioned before it, unless data decides."""
        history = self.ranker.history
        if history is not None and history.runs_in_chains:
            return is_next
        learned = history.links(earlier.tool.uid, draft.tool.uid) if history is not None else None
        return (is_next and not draft.filling.refs) if learned is None else learned >= _LINKED

    def _changes_things(self, draft: Draft) -> bool:
        offers = self.catalogue.open_offers(draft.tool.uid)
        return any(offer.effects - GENTLE_EFFECTS for offer in offers)

    # What comes out.

    def confidence(self) -> float:
        """Return the plan's confidence: as past plans tell, else by a fixed conservative map of the weakest step, the mean,
        rivals and assumptions.
        """
        if not self.drafts:
            return 0.0
        ceiling = _DOUBTFUL if self.is_doubtful else 1.0
        if self.learned is not None:
            return round(min(self.learned, _LEARNED_CEILING, ceiling), 2)
        kept = [draft.p for draft in self.drafts]
        mean = math.exp(math.fsum(math.log(p) for p in kept) / len(kept))
        rivals = 0.05 if max(self.rejected, default=0.0) >= min(kept) else 0.0
        doubts = _DOUBT * min(len(self.assumptions), 4)
        return round(max(min(0.5 * min(kept) + 0.5 * mean - rivals - doubts, _CEILING, ceiling), 0.0), 2)

    def take_offers(self) -> None:
        """Give every step that is left to a worker that has room for it, within the budget where one can be."""
        todo = self._to_do()
        numbers = {draft.key: draft.done.step_id if draft.done else "step-99" for draft in self.drafts}
        calls: Counter[str] = Counter()
        spent = 0.0
        for place, draft in enumerate(todo):
            size = payload_bytes(resolved(draft.filling.params, numbers))
            offers = self._offers(draft)
            reasons = [lacks_room(one, payload_bytes=size, calls=calls[one.worker_id] + 1) for one in offers]
            able = [one for one, reason in zip(offers, reasons, strict=True) if reason is None]
            if not able:
                why = "; ".join(sorted(reason for reason in reasons if reason))
                detail = f"No worker has room for {draft.tool.name}: {why}."
                self.miss("limit", detail, tool_name=draft.tool.name, clause=draft.clause.text)
                continue
            draft.choice = choose(
                self._affordable(able, spent, todo[place + 1 :]), salt=self.salt, priority=self.request.priority
            )
            calls[draft.choice.offer.worker_id] += 1
            spent += draft.choice.cost

    def _offers(self, draft: Draft) -> Sequence[Offer]:
        """Who may run a step: of what was handed on to somebody, nobody else."""
        offers = self.catalogue.open_offers(draft.tool.uid)
        named = draft.handed_on.worker_id if draft.handed_on else None
        return offers if named is None else [one for one in offers if one.worker_id == named]

    def _affordable(self, offers: Sequence[Offer], spent: float, later: Sequence[Draft]) -> Sequence[Offer]:
        """Those that leave enough for what comes later at its cheapest; all of them, where none does."""
        limits = self.request.limits
        if limits.max_total_cost is None and limits.max_cost_per_step is None:
            return offers
        rest = math.fsum(min(one.cost for one in self.catalogue.open_offers(draft.tool.uid)) for draft in later)
        total = math.inf if limits.max_total_cost is None else round(limits.max_total_cost - spent - rest, 6)
        most = min(total, math.inf if limits.max_cost_per_step is None else limits.max_cost_per_step)
        return [one for one in offers if one.cost <= most] or offers

    def ready(self) -> Plan:
        """Return the plan that can be carried out."""
        after = self.revision.after if self.revision else 0
        steps = Layout(self.request.intent, self.drafts, self.wishes, after=after).steps()
        outputs = [
            references.write(step.step_id, shapes.RESULT_POINTER) for step in steps if step.step_type in WORKER_STEPS
        ]
        return self._plan(
            PlanStatus.READY,
            steps,
            confidence=self.confidence(),
            result_pointers=outputs,
            estimated_total_runtime_seconds=longest_way(steps),
            execution_cost_estimate=round(math.fsum(draft.choice.cost for draft in self.drafts if draft.choice), 6),
            can_run_parallel=has_independent_steps(steps),
        )

    def _to_do(self) -> list[Draft]:
        return [draft for draft in self.drafts if draft.done is None]

    def refusal(self) -> Plan:
        """Return the plan whose only step escalates."""
        first = self.missing[0]
        escalate = Step(
            step_id="step-1",
            step_type=StepType.ESCALATE,
            report_summary=plain(f"No plan can be made that does all of this: {self.request.intent[:500]}"),
            decision_required=True,
            recommendation=plain(f"{_sentence(first['detail'][:1500])} {_ADVICE[first['kind']]}"),
        )
        ranked = sorted(self.nearest, key=lambda one: (-one["score"], one["tool_uid"], one["clause"]))
        best = max((one["score"] for one in ranked), default=0.0)
        return self._plan(
            PlanStatus.NEEDS_ESCALATION,
            (escalate,),
            confidence=round(min(best, REFUSED), 2),
            missing=tuple(self.missing[:100]),
            candidates=tuple(ranked[:_NEAREST]),
            partial_plan={
                "confidence": self._partial_confidence(),
                "steps": [self._partial(draft) for draft in self.drafts],
            },
        )

    def _partial_confidence(self) -> float:
        """How surely the steps found so far are those that the request needs, whatever their params lack."""
        if self.learned is not None:
            return round(self.learned, 2)
        unserved = {one["clause"] for one in self.missing if one["kind"] in _UNSERVED_KINDS and "clause" in one}
        kept = math.prod(draft.p for draft in self.drafts) if self.drafts else 0.0
        return round(kept * _UNSERVED ** len(unserved), 2)

    def _partial(self, draft: Draft) -> dict[str, Any]:
        if draft.done is not None:
            return draft.done.document()
        offers = self._offers(draft)
        choice = choose(offers, salt=self.salt, priority=self.request.priority)
        first = self.revision.after if self.revision else 0
        numbers = {
            other.key: other.done.step_id if other.done else f"step-{first + place}"
            for place, other in enumerate(self.drafts, start=1)
        }
        return {
            "step_id": numbers[draft.key],
            "step_type": str(choice.mode),
            "worker_id": choice.offer.worker_id,
            "tool_name": draft.tool.name,
            "params": resolved(draft.filling.params, numbers),
            "depends_on": [numbers[key] for key in sorted(draft.parents) if key in numbers],
            "order_hint": [numbers[key] for key in sorted(draft.hints) if key in numbers],
            "missing_params": list(draft.filling.missing),
            "confidence": draft.p,
        }

    def _plan(
        self, status: PlanStatus, steps: Sequence[Step], *, result_pointers: Sequence[str] = (), **more: Any
    ) -> Plan:
        request = self.request
        return Plan(
            plan_id=request.plan_id,
            delegate_id=request.delegate_id,
            principal_ai=request.principal_ai,
            intent=request.intent,
            created_at=request.created_at,
            scope=self._scope(),
            status=status,
            steps=tuple(steps),
            planner_version=PLANNER_VERSION,
            registry_epoch=self.catalogue.epoch,
            assumptions=tuple(dict.fromkeys(self.assumptions))[:100],
            references={
                "inputs": {
                    "memory_ids": list(request.memory_ids),
                    "receipt_ids": list(request.receipt_ids),
                    "concept_names": list(request.concept_names),
                },
                "expected_outputs": {"async_task_ids": [], "result_pointers": list(result_pointers)},
            },
            constraints=request.constraints or None,
            delegation_path=request.delegation_path[:-1] or None,
            replaces=self.revision.replaces if self.revision else None,
            revision=self.revision.number if self.revision else None,
            excluded=(self.revision.failed or None) if self.revision else None,
            **more,
        )

    def _scope(self) -> str:
        """The asker's or delegate's word for the domain, else the first capability that the chosen workers share most."""
        if self.request.scope:
            return self.request.scope
        tags: Counter[str] = Counter()
        for draft in self.drafts:
            tags.update(draft.choice.offer.capabilities if draft.choice else ())
        return tags.most_common(1)[0][0][:200] if tags else "general"


def _reached(keys: Iterable[int], above: Mapping[int, Collection[int]]) -> set[int]:
    """These drafts and all that they wait for."""
    found: set[int] = set()
    left = list(keys)
    while left:
        key = left.pop()
        if key not in found:
            found.add(key)
            left.extend(above.get(key, ()))
    return found


def _spoken_of(clause: Clause) -> frozenset[str]:
    """What a clause speaks of, in words or by what it names exactly."""
    return clause.concepts.union(*(CONCEPTS_OF_SPANS.get(span.kind, ()) for span in clause.spans)).union(
        kind for span in clause.spans if (kind := kinds.of_file(span.value))
    )


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
