"""Payloads of GitHub's webhooks, cut to what the hooks read and what surrounds it."""

from typing import Any


def _event(action: str, by: str, **members: Any) -> dict[str, Any]:
    return {"action": action, "repository": {"full_name": "acme/site"}, "sender": {"login": by}, **members}


def review_comment(number: int, *, by: str = "hubot", body: str = "Use more emojis.") -> dict[str, Any]:
    return _event("created", by, comment={"body": body, "path": "README.md"}, pull_request={"number": number})


def review(number: int, *, by: str = "hubot", state: str = "changes_requested") -> dict[str, Any]:
    return _event("submitted", by, review={"body": None, "state": state}, pull_request={"number": number})


def issue_comment(number: int, *, of_pull_request: bool) -> dict[str, Any]:
    link = {"pull_request": {"url": f"https://api.github.com/repos/acme/site/pulls/{number}"}}
    issue = {"number": number, **(link if of_pull_request else {})}
    return _event("created", "hubot", issue=issue, comment={"body": "You are totally right!"})


def pull_request(number: int, action: str) -> dict[str, Any]:
    return _event(action, "mona", number=number, pull_request={"number": number, "state": "open"})


def check_run(
    name: str, conclusion: str | None, *, pull_requests: tuple[int, ...] = (135,), branch: str | None = "changes"
) -> dict[str, Any]:
    named = [{"id": 1, "number": number} for number in pull_requests]
    run = {
        "name": name,
        "status": "completed" if conclusion else "in_progress",
        "conclusion": conclusion,
        "check_suite": {"head_branch": branch, "pull_requests": named},
        "pull_requests": named,
    }
    return _event("completed" if conclusion else "created", "mona", check_run=run)


def workflow_run(name: str, conclusion: str | None, *, branch: str = "main") -> dict[str, Any]:
    run: dict[str, Any] = {
        "name": name,
        "head_branch": branch,
        "status": "completed",
        "conclusion": conclusion,
        "pull_requests": [],
    }
    return _event("completed", "mona", workflow_run=run)


def status(context: str, state: str, *, branch: str | None = "main") -> dict[str, Any]:
    branches = [{"name": branch, "protected": False}] if branch else []
    return _event("", "mona", context=context, state=state, branches=branches)
