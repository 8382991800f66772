"""optimization-suggester: turns an analysis of code into ranked suggestions.

It works on the analysis alone and never opens the analyzed tree. The analysis comes as a value or as
the hub's result pointer: `inline:` pointers hold it, `artifact:` pointers are fetched from the hub
that `GATEHOUSE_URL` names. No other pointer is followed.

Run it: `python examples/workers/optimization_suggester.py --port 8802`
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final, Literal

from hub_pointers import resolve, unwrapped
from pydantic import BaseModel, Field, ValidationError
from worker_kit import Worker, refused

MAX_SUGGESTIONS: Final = 50

Level = Literal["high", "medium", "low"]
# From where on a finding is worth a suggestion, and from where on a weighty one.
COMPLEX, VERY_COMPLEX, HARD_TO_SPLIT = 10, 20, 40
MUCH_DUPLICATION: Final = 60
MUCH_DEAD_CODE: Final = 4
WEIGHT: Final[dict[str, int]] = {"high": 3, "medium": 2, "low": 1}

worker = Worker(
    worker_id="optimization-suggester",
    description="Suggests optimizations and refactorings from the analysis of a codebase.",
    capabilities=["optimization", "optimizations", "suggestions", "refactoring", "performance", "code_improvement"],
    constraints={"max_payload_bytes": 4_000_000, "timeout_seconds": 30, "rate_limit_per_hour": 3_600},
    hints={"latency_band": "fast", "cost_band": "free", "expected_runtime": "fast"},
    side_effects={"filesystem": "none", "network": "outbound", "execution": "none"},
    capacity=8,
)

Text = Annotated[str, Field(max_length=4_000)]
Count = Annotated[int, Field(ge=0, le=2**53)]


class Issue(BaseModel):
    path: Text
    line: Count = 1
    kind: Text
    severity: Level = "medium"
    message: Text = ""


class Hotspot(BaseModel):
    path: Text
    function: Text
    line: Count = 1
    complexity: Count


class Place(BaseModel):
    path: Text
    line: Count = 1
    function: Text = ""


class Duplicate(BaseModel):
    lines: Count = 0
    places: Annotated[list[Place], Field(min_length=2, max_length=1_000)]


class Analysis(BaseModel):
    """What this worker reads of an analysis; `issues` must be there, all else is optional."""

    issues: Annotated[list[Issue], Field(max_length=10_000)]
    hotspots: Annotated[list[Hotspot], Field(max_length=10_000)] = []
    duplicates: Annotated[list[Duplicate], Field(max_length=10_000)] = []


class Suggestion(BaseModel):
    title: str
    path: str
    line: int
    kind: str
    rationale: str
    effort: Level
    impact: Level


class Suggestions(BaseModel):
    summary: str
    suggestions_count: int
    suggestions: list[Suggestion] = Field(description="Ranked: highest impact first, least effort first among equals.")


Pointer = Annotated[
    str | dict[str, Any],
    Field(description="Result pointer of a code analysis (artifact:... or inline:...), or the analysis itself."),
]


@worker.tool(title="Suggest optimizations", open_world=True)
async def suggest_optimizations(analysis_pointer: Pointer) -> Suggestions:
    """Suggest optimizations, ranked by impact, from the analysis of a codebase.

    Proposes improvements and refactorings: what to simplify, split, merge, speed up or delete, where,
    why, and with what effort. `analysis_pointer` is the result pointer of the analysis, or the analysis.
    """
    document = analysis_pointer if isinstance(analysis_pointer, dict) else await resolve(analysis_pointer)
    return suggestions_from(parsed(document))


def parsed(document: Any) -> Analysis:
    """Return the analysis in a document, also where a hub has wrapped it as the result of a call."""
    try:
        return Analysis.model_validate(unwrapped(document, "issues"))
    except ValidationError as refusal:
        first = refusal.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "document"
        raise refused("not_an_analysis", f"This is not a code analysis: {where}: {first['msg']}") from None


def suggestions_from(analysis: Analysis) -> Suggestions:
    """Apply every rule and rank what they propose."""
    found = [suggestion for rule in RULES for suggestion in rule(analysis)]
    found.sort(key=lambda s: (-WEIGHT[s.impact], WEIGHT[s.effort], s.path, s.line, s.kind))
    high = sum(suggestion.impact == "high" for suggestion in found)
    if not found:
        summary = "The analysis gives no reason for a change"
    else:
        noun = "suggestion" if len(found) == 1 else "suggestions"
        summary = f"{len(found)} {noun}, {high} of high impact; first: {found[0].title}"
    return Suggestions(summary=summary, suggestions_count=len(found), suggestions=found[:MAX_SUGGESTIONS])


def simplify_complex_functions(analysis: Analysis) -> Iterator[Suggestion]:
    for spot in analysis.hotspots:
        if spot.complexity <= COMPLEX:
            continue
        severe = spot.complexity > VERY_COMPLEX
        yield Suggestion(
            title=f"Split {spot.function} along its branches",
            path=spot.path,
            line=spot.line,
            kind="complex_function",
            rationale=f"Its cyclomatic complexity is {spot.complexity}: as many cases to test and to keep in mind; {COMPLEX} is a common ceiling.",
            effort="high" if spot.complexity > HARD_TO_SPLIT else "medium",
            impact="high" if severe else "medium",
        )
    listed = {(spot.path, spot.line) for spot in analysis.hotspots}
    for issue in of_kind(analysis, "complex_function"):
        if (issue.path, issue.line) not in listed:
            yield one("Split the function along its branches", issue, "Each branch is a case to test", effort="medium")


def shorten_functions(analysis: Analysis) -> Iterator[Suggestion]:
    complex_ones = {(spot.path, spot.line) for spot in analysis.hotspots if spot.complexity > COMPLEX}
    complex_ones |= {(issue.path, issue.line) for issue in of_kind(analysis, "complex_function")}
    for issue in of_kind(analysis, "long_function"):
        if (issue.path, issue.line) not in complex_ones:
            yield one(
                "Break the function into named steps",
                issue,
                "Long functions hide what could be tested and reused alone",
                effort="medium",
            )


def ease_maintenance(analysis: Analysis) -> Iterator[Suggestion]:
    for issue in of_kind(analysis, "low_maintainability"):
        yield one(
            f"Refactor {issue.path}",
            issue,
            "Its functions are large and dense, so each change is slow and risky",
            effort="high",
        )


def split_files(analysis: Analysis) -> Iterator[Suggestion]:
    for issue in of_kind(analysis, "oversized_file"):
        yield one(
            f"Split {issue.path} by subject", issue, "Large files collect unrelated reasons to change", effort="medium"
        )


def share_duplicates(analysis: Analysis) -> Iterator[Suggestion]:
    for duplicate in analysis.duplicates:
        first, copies = duplicate.places[0], len(duplicate.places)
        where = ", ".join(f"{place.path}:{place.line}" for place in duplicate.places[1:6])
        yield Suggestion(
            title=f"Keep one {first.function or 'function'} instead of {copies}",
            path=first.path,
            line=first.line,
            kind="duplicate_code",
            rationale=f"The same {duplicate.lines} lines stand at {where}: a fix made in one place is missed in the others.",
            effort="low",
            impact="high" if duplicate.lines * (copies - 1) >= MUCH_DUPLICATION else "medium",
        )


def speed_up(analysis: Analysis) -> Iterator[Suggestion]:
    titles: dict[str, tuple[str, Level]] = {
        "nested_loops": ("Replace the inner loops by an index or a set", "medium"),
        "regex_compiled_in_loop": ("Compile the pattern once, outside the loop", "low"),
        "list_front_in_loop": ("Use collections.deque for work at the front", "low"),
        "needless_list": ("Pass a generator instead of a list", "low"),
    }
    for kind, (title, effort) in titles.items():
        for issue in of_kind(analysis, kind):
            impact: Level = "low" if kind == "needless_list" else "high" if kind == "nested_loops" else "medium"
            yield one(title, issue, "It costs time in every run", effort=effort, impact=impact)


def delete_dead_code(analysis: Analysis) -> Iterator[Suggestion]:
    by_path: defaultdict[str, list[Issue]] = defaultdict(list)
    for issue in of_kind(analysis, "dead_code"):
        by_path[issue.path].append(issue)
    for issues in by_path.values():
        count = len(issues)
        title = f"Delete dead code in {count} places" if count > 1 else "Delete dead code"
        yield one(
            title,
            issues[0],
            "Code that nothing uses is still read, tested and upgraded",
            effort="low",
            impact="medium" if count > MUCH_DEAD_CODE else "low",
        )


def mend_broken_files(analysis: Analysis) -> Iterator[Suggestion]:
    for kind in ("syntax_error", "unreadable"):
        for issue in of_kind(analysis, kind):
            yield one(f"Mend or remove {issue.path}", issue, "No tool can check or measure it as it is", effort="low")


def narrow_signatures(analysis: Analysis) -> Iterator[Suggestion]:
    for issue in of_kind(analysis, "many_parameters"):
        yield one(
            "Group parameters that travel together",
            issue,
            "Calls with many arguments are easy to get wrong",
            effort="medium",
        )


RULES: Final[tuple[Callable[[Analysis], Iterator[Suggestion]], ...]] = (
    simplify_complex_functions,
    shorten_functions,
    ease_maintenance,
    split_files,
    share_duplicates,
    speed_up,
    delete_dead_code,
    mend_broken_files,
    narrow_signatures,
)


def of_kind(analysis: Analysis, kind: str) -> Iterator[Issue]:
    return (issue for issue in analysis.issues if issue.kind == kind)


def one(title: str, issue: Issue, reason: str, *, effort: Level, impact: Level | None = None) -> Suggestion:
    """Return the suggestion that answers one issue; its impact is the issue's severity unless the rule knows better."""
    rationale = f"{issue.message}. {reason}." if issue.message else f"{reason}."
    return Suggestion(
        title=title,
        path=issue.path,
        line=issue.line,
        kind=issue.kind,
        rationale=rationale,
        effort=effort,
        impact=impact or issue.severity,
    )


if __name__ == "__main__":
    sys.exit(worker.main())
