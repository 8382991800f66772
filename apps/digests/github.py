"""GitHub's webhooks, posted with the webhook's event as `event_type` and its payload as `metadata`.

`github_repo` is what people do on a repository, `github_repo_ci` what its checks report. A thread is about one pull
request, or one branch, of one repository.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from apps.digests.hooks import Context, Fact, Hook, register, value_at
from apps.digests.shapes import NextActionOutput, ReceiptOutput
from apps.receipts.models import FlushClass
from apps.receipts.services import Group

_REVIEWS: Final = {"pull_request_review", "pull_request_review_comment", "pull_request_review_thread"}


def _event(fact: Fact) -> str:
    """The webhook's name; some adapters write `name.action`."""
    return fact.event_type.split(".")[0]


def _of_repository(resource: str, fact: Fact) -> str:
    """One source may speak of many repositories, whose numbers and branches mean different things."""
    repository = fact.get("repository.full_name")
    return f"{resource}@{repository}" if repository else resource


def group_repo_event(fact: Fact) -> Group | None:
    """Reviews and comments of a pull request, its other changes, and the comments of an issue."""
    event, number = _event(fact), fact.get("pull_request.number", "issue.number", "number")
    if number is None:
        return None
    pull_request = _of_repository(f"pr:{number}", fact)
    on_pull_request = fact.get("issue.pull_request.url") is not None
    if event in _REVIEWS or (event == "issue_comment" and on_pull_request):
        return Group(resource_ref=pull_request, event_family="review_comments")
    if event == "issue_comment":
        return Group(resource_ref=_of_repository(f"issue:{number}", fact), event_family="issue_comments")
    if event == "pull_request":
        ends = fact.get("action") == "closed"
        return Group(
            resource_ref=pull_request,
            event_family="pr_updates",
            flush_class=FlushClass.IMMEDIATE if ends else FlushClass.NORMAL,
        )
    return None


def summarize_repo_thread(facts: Sequence[Fact], context: Context) -> tuple[str, str] | None:
    """Who commented how often, and the newest comment."""
    if context.event_family == "pr_updates":
        return None
    authors = Counter(author for fact in facts if (author := fact.get("sender.login")))
    title = f"{_many(context.count, 'comment')} on {context.resource_ref}"
    by = ", ".join(f"{author} ({count})" if count > 1 else author for author, count in authors.most_common(5))
    states = [state for fact in facts if (state := fact.get("review.state")) in {"approved", "changes_requested"}]
    verdict = f" Latest verdict: {states[-1].replace('_', ' ')}." if states else ""
    body = next((text for fact in reversed(facts) if (text := fact.get("comment.body", "review.body"))), "")
    latest = f" Latest: {' '.join(body.split())}" if body else ""
    return (title, f"By {by}.{verdict}{latest}") if by else None


# The five webhooks of checks, with where each says its check's name and how it stands.
_CHECKS: Final = {
    "check_run": ("check_run.name", "check_run.conclusion", "check_run.status"),
    "check_suite": ("check_suite.app.name", "check_suite.conclusion", "check_suite.status"),
    "workflow_run": ("workflow_run.name", "workflow_run.conclusion", "workflow_run.status"),
    "workflow_job": ("workflow_job.name", "workflow_job.conclusion", "workflow_job.status"),
    "status": ("context", "state", "state"),
}
_PULL_REQUESTS: Final = (
    "check_run.pull_requests.0.number",
    "check_run.check_suite.pull_requests.0.number",
    "check_suite.pull_requests.0.number",
    "workflow_run.pull_requests.0.number",
)
_BRANCHES: Final = (
    "check_run.check_suite.head_branch",
    "check_suite.head_branch",
    "workflow_run.head_branch",
    "workflow_job.head_branch",
    "branches.0.name",
)
_FAILED: Final = {"failure", "error", "timed_out", "startup_failure", "action_required"}
_PASSED: Final = {"success", "neutral", "skipped"}


def group_ci_event(fact: Fact) -> Group | None:
    """What all checks report on one pull request; of a commit outside of any, on its branch."""
    if _event(fact) not in _CHECKS:
        return None
    number, branch = fact.get(*_PULL_REQUESTS), fact.get(*_BRANCHES)
    resource = f"pr:{number}" if number else f"branch:{branch}" if branch else None
    return Group(resource_ref=_of_repository(resource, fact), event_family="ci_updates") if resource else None


def summarize_ci_thread(facts: Sequence[Fact], context: Context) -> tuple[str, str] | None:
    """How each check stands after its newest report."""
    checks: dict[str, str] = {}
    for fact in facts:
        name, conclusion, status = _CHECKS.get(_event(fact), ("", "", ""))
        checks[fact.get(name) or "unnamed"] = fact.get(conclusion, status) or "unknown"
    failed = sorted(name for name, state in checks.items() if state in _FAILED)
    passed = sum(state in _PASSED for state in checks.values())
    open_ones = len(checks) - len(failed) - passed
    outcome = f"{len(failed)} failed" if failed else f"{passed} passed" if not open_ones else f"{open_ones} running"
    parts = [f"failed: {', '.join(failed[:10])}" if failed else "", f"{passed} passed" if passed else ""]
    parts += [f"{open_ones} not finished" if open_ones else "", f"{_many(context.count, 'update')} in all"]
    return f"CI on {context.resource_ref}: {outcome}", "; ".join(part for part in parts if part)


_PAGES: Final = (
    "comment.html_url",
    "review.html_url",
    "pull_request.html_url",
    "issue.html_url",
    "check_run.html_url",
    "workflow_run.html_url",
    "workflow_job.html_url",
    "target_url",
)


def look_at_page(receipt: ReceiptOutput) -> NextActionOutput | None:
    """The page on GitHub that a webhook is about."""
    page = value_at(receipt.metadata, *_PAGES)
    return NextActionOutput(description=f"Look at {page}, then archive this receipt.") if page else None


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


register(
    Hook(
        source_system="github_repo",
        reads=(
            "action",
            "number",
            "repository.full_name",
            "sender.login",
            "pull_request.number",
            "issue.number",
            "issue.pull_request.url",
            "comment.body",
            "review.body",
            "review.state",
        ),
        group_of=group_repo_event,
        summarize_thread=summarize_repo_thread,
        next_action=look_at_page,
    )
)
register(
    Hook(
        source_system="github_repo_ci",
        reads=(
            "repository.full_name",
            *_PULL_REQUESTS,
            *_BRANCHES,
            *sorted({path for paths in _CHECKS.values() for path in paths}),
        ),
        group_of=group_ci_event,
        summarize_thread=summarize_ci_thread,
        next_action=look_at_page,
    )
)
