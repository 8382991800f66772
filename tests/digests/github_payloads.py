"""Payloads as GitHub's webhooks send them, cut to the parts that say something."""

from typing import Any

REPOSITORY = {
    "id": 1296269,
    "name": "site",
    "full_name": "acme/site",
    "private": False,
    "owner": {"login": "acme", "id": 6752317, "type": "Organization"},
    "html_url": "https://github.com/acme/site",
    "default_branch": "main",
}


def _user(login: str) -> dict[str, Any]:
    return {"login": login, "id": 583231, "type": "User", "site_admin": False}


def _pull_request(number: int) -> dict[str, Any]:
    return {
        "url": f"https://api.github.com/repos/acme/site/pulls/{number}",
        "id": 279147437,
        "number": number,
        "state": "open",
        "locked": False,
        "title": "Update the README with new information",
        "user": _user("mona"),
        "body": "This is a pretty simple change that we need to pull into main.",
        "head": {"ref": "changes", "sha": "ec26c3e57ca3a959ca5aad62de7213c562f8c821", "repo": REPOSITORY},
        "base": {"ref": "main", "sha": "f95f852bd8fca8fcc58a9a2d6c842781e32a215e", "repo": REPOSITORY},
        "draft": False,
    }


def review_comment(
    number: int, *, by: str = "hubot", body: str = "Maybe you should use more emojis."
) -> dict[str, Any]:
    return {
        "action": "created",
        "comment": {
            "url": "https://api.github.com/repos/acme/site/pulls/comments/284312630",
            "pull_request_review_id": 237895671,
            "id": 284312630,
            "diff_hunk": "@@ -1 +1 @@\n-# site",
            "path": "README.md",
            "position": 1,
            "user": _user(by),
            "body": body,
            "created_at": "2019-05-15T15:20:37Z",
        },
        "pull_request": _pull_request(number),
        "repository": REPOSITORY,
        "sender": _user(by),
    }


def review(number: int, *, by: str = "hubot", state: str = "changes_requested") -> dict[str, Any]:
    return {
        "action": "submitted",
        "review": {
            "id": 237895671,
            "user": _user(by),
            "body": None,
            "commit_id": "ec26c3e57ca3a959ca5aad62de7213c562f8c821",
            "submitted_at": "2019-05-15T15:20:38Z",
            "state": state,
        },
        "pull_request": _pull_request(number),
        "repository": REPOSITORY,
        "sender": _user(by),
    }


def issue_comment(number: int, *, of_pull_request: bool, by: str = "hubot") -> dict[str, Any]:
    pull_request = {"url": f"https://api.github.com/repos/acme/site/pulls/{number}", "merged_at": None}
    return {
        "action": "created",
        "issue": {
            "id": 444500041,
            "number": number,
            "title": "Spelling error in the README file",
            "user": _user("mona"),
            "state": "open",
            **({"pull_request": pull_request} if of_pull_request else {}),
        },
        "comment": {"id": 492700400, "user": _user(by), "body": "You are totally right!"},
        "repository": REPOSITORY,
        "sender": _user(by),
    }


def pull_request(number: int, action: str) -> dict[str, Any]:
    return {
        "action": action,
        "number": number,
        "pull_request": _pull_request(number),
        "repository": REPOSITORY,
        "sender": _user("mona"),
    }


def push() -> dict[str, Any]:
    return {"ref": "refs/heads/main", "commits": [], "repository": REPOSITORY, "sender": _user("mona")}


def _named(pull_requests: tuple[int, ...]) -> list[dict[str, Any]]:
    return [
        {"url": f"https://api.github.com/repos/acme/site/pulls/{number}", "id": 1, "number": number}
        for number in pull_requests
    ]


def check_run(
    name: str, conclusion: str | None, *, pull_requests: tuple[int, ...] = (135,), branch: str | None = "changes"
) -> dict[str, Any]:
    return {
        "action": "completed" if conclusion else "created",
        "check_run": {
            "id": 128620228,
            "name": name,
            "head_sha": "ec26c3e57ca3a959ca5aad62de7213c562f8c821",
            "status": "completed" if conclusion else "in_progress",
            "conclusion": conclusion,
            "started_at": "2019-05-15T15:21:12Z",
            "output": {"title": None, "summary": None, "annotations_count": 0},
            "check_suite": {"id": 118578147, "head_branch": branch, "pull_requests": _named(pull_requests)},
            "pull_requests": _named(pull_requests),
        },
        "repository": REPOSITORY,
        "sender": _user("mona"),
    }


def workflow_run(name: str, conclusion: str | None, *, branch: str = "main") -> dict[str, Any]:
    return {
        "action": "completed" if conclusion else "requested",
        "workflow_run": {
            "id": 30433642,
            "name": name,
            "head_branch": branch,
            "run_number": 562,
            "event": "push",
            "status": "completed" if conclusion else "queued",
            "conclusion": conclusion,
            "pull_requests": [],
        },
        "repository": REPOSITORY,
        "sender": _user("mona"),
    }


def status(context: str, state: str, *, branch: str | None = "main") -> dict[str, Any]:
    return {
        "id": 6805126730,
        "sha": "6113728f27ae82c7b1a177c8d03f9e96e0adf246",
        "name": "acme/site",
        "context": context,
        "description": None,
        "state": state,
        "branches": [{"name": branch, "protected": False}] if branch else [],
        "repository": REPOSITORY,
        "sender": _user("mona"),
    }
