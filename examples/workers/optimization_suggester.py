"""optimization-suggester: turns an analysis of code into ranked suggestions.

It works on the analysis alone and never opens the analyzed tree. The analysis comes as a value or as a result pointer.

Run it: `python examples/workers/optimization_suggester.py --port 8802`
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field
from worker_kit import Pointer, Worker, resolve

Level = Literal["high", "medium", "low"]
Text = Annotated[str, Field(max_length=4_000)]
Count = Annotated[int, Field(ge=0, le=2**53)]

# By kind of issue: what to do, why, and the effort.
ADVICE: Final[dict[str, tuple[str, str, Level]]] = {
    "complex_function": ("Split the function along its branches", "Each branch is a case to test", "medium"),
    "long_function": ("Break the function into named steps", "Steps can be tested and reused alone", "medium"),
    "dead_code": ("Delete dead code", "Code that nothing uses is still read, tested and upgraded", "low"),
    "unreadable": ("Mend or remove the file", "No tool can check or measure it as it is", "low"),
}
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


class Issue(BaseModel):
    path: Text
    line: Count = 1
    kind: Text
    severity: Level = "medium"
    message: Text = ""


class Analysis(BaseModel):
    """What this worker reads of an analysis."""

    issues: Annotated[list[Issue], Field(max_length=10_000)]


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


@worker.tool(title="Suggest optimizations", open_world=True)
async def suggest_optimizations(analysis_pointer: Pointer) -> Suggestions:
    """Suggest optimizations, ranked by impact, from the analysis of a codebase.

    Proposes improvements and refactorings: what to simplify, split, mend or delete, where, why, and with what
    effort. `analysis_pointer` is the result pointer of the analysis, or the analysis.
    """
    analysis = await resolve(analysis_pointer, Analysis, code="not_an_analysis")
    found = []
    for issue in analysis.issues:
        if issue.kind in ADVICE:
            title, reason, effort = ADVICE[issue.kind]
            rationale = f"{issue.message}. {reason}." if issue.message else f"{reason}."
            about = issue.model_dump(include={"path", "line", "kind"})
            found.append(Suggestion(title=title, rationale=rationale, effort=effort, impact=issue.severity, **about))
    found.sort(key=lambda one: (-WEIGHT[one.impact], WEIGHT[one.effort], one.path, one.line, one.kind))
    high = sum(one.impact == "high" for one in found)
    summary = (
        f"Suggestions: {len(found)}, of high impact: {high}" if found else "The analysis gives no reason for a change"
    )
    return Suggestions(summary=summary, suggestions_count=len(found), suggestions=found[:50])


if __name__ == "__main__":
    worker.main()
