"""Rule 1: where a receipt's group comes from, and what a digest is called."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from apps.digests import hooks, selectors, services
from apps.digests.hooks import Context, Fact, Hook
from apps.digests.shapes import EntryOutput, NextActionOutput, ReceiptOutput
from apps.principals.tenancy import Caller
from apps.receipts.services import Group, Poster
from tests.digests.makers import make_draft, post, post_grouped, read, set_policy, set_source, unsound
from tests.factories import T0, pass_time


@pytest.fixture(autouse=True)
def sound(as_kee: Caller) -> Iterator[None]:
    yield
    assert unsound() == {}


def flushed(owner: Caller) -> list[EntryOutput]:
    pass_time(31)
    services.flush_due()
    return read(owner).entries


def nothing(fact: Fact) -> Group | None:
    return None


@pytest.fixture
def hook() -> Iterator[Callable[..., None]]:
    """Registers a hook of the source crm, for one test."""

    def register(group_of: Callable[[Fact], Group | None] = nothing, **more: Any) -> None:
        hooks.register(Hook(source_system="crm", reads=("deal.id", "deal.tags.0"), group_of=group_of, **more))

    yield register
    hooks._hooks.pop("crm", None)


def test_posted_group_precedes_the_hook(as_kee: Caller, hook: Callable[..., None]) -> None:
    hook(lambda fact: Group(resource_ref="theirs", event_family="deals"))
    set_source(as_kee, "crm", by_key=True)
    post_grouped(as_kee, "ours", source="crm")
    post(as_kee, source="crm")
    assert [entry.group_key for entry in flushed(as_kee)] == ["crm:ours:ci", "crm:theirs:deals"]


def test_an_empty_group_is_ignored(as_kee: Caller, hook: Callable[..., None]) -> None:
    hook(lambda fact: Group(resource_ref="theirs", event_family="deals"))
    post(as_kee, source="crm", group=Group())
    assert read(as_kee).pending == 1


def test_hook_group_precedes_the_dedupe_key(as_kee: Caller, hook: Callable[..., None]) -> None:
    def group_of(fact: Fact) -> Group | None:
        deal = fact.get("deal.id")
        return Group(resource_ref=f"deal:{deal}", event_family="deals") if deal else None

    hook(group_of)
    set_source(as_kee, "crm", by_key=True)
    post(as_kee, source="crm", dedupe_key="crm:call:9:v1", metadata={"deal": {"id": 7}})
    post(as_kee, source="crm", dedupe_key="crm:call:9:v2", metadata={"deal": "none"})
    assert [entry.group_key for entry in flushed(as_kee)] == ["crm:deal:7:deals", "crm:9:call"]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("github:ci:pr-1:v3", ("pr-1", "ci")),
        ("github:ci:pr:135:v3", ("pr:135", "ci")),
        ("github:ci:v3", None),
        ("github:ci::v3", None),
        ("github::pr-1:v3", None),
        ("github:ci:pr-1:", None),
        ("gitlab:ci:pr-1:v3", None),
        ("githubci:pr-1:v3", None),
        ("github:" + "x" * 101 + ":pr-1:v3", None),
    ],
)
def test_dedupe_key_groups_where_the_source_opts_in(as_kee: Caller, key: str, expected: tuple[str, str] | None) -> None:
    draft = make_draft(as_kee, dedupe_key=key)
    assert selectors.group_of(as_kee.tenant_id, draft) is None
    set_source(as_kee, by_key=True)
    found = selectors.group_of(as_kee.tenant_id, draft)
    assert (found and (found.resource_ref, found.event_family)) == expected


def fails(*_: object) -> Any:
    raise LookupError("no such deal")


@pytest.mark.parametrize(
    "group_of",
    [
        fails,
        lambda fact: Group(resource_ref=7, event_family="deals"),  # type: ignore[arg-type]
        lambda fact: Group(resource_ref="deal:7", event_family="deals", summary_hint="\x00"),
        lambda fact: ("deal:7", "deals"),
    ],
    ids=["an error", "a number", "a NUL", "no group"],
)
def test_a_faulty_group_is_logged_and_ignored(
    as_kee: Caller, hook: Callable[..., None], caplog: pytest.LogCaptureFixture, group_of: Any
) -> None:
    hook(group_of)
    post(as_kee, source="crm")
    assert [entry.kind for entry in read(as_kee).entries] == ["item"]
    assert "the hook of crm could not group a receipt" in caplog.text


@pytest.mark.parametrize(("resource", "family"), [("x" * 201, "f"), ("r", "x" * 101), ("", "f")])
def test_a_group_that_does_not_fit_is_none(
    as_kee: Caller, hook: Callable[..., None], resource: str, family: str
) -> None:
    hook(lambda fact: Group(resource_ref=resource, event_family=family))
    post(as_kee, source="crm")
    assert [entry.kind for entry in read(as_kee).entries] == ["item"]


def test_a_batch_is_grouped_like_single_posts(as_kee: Caller, hook: Callable[..., None]) -> None:
    hook(lambda fact: Group(resource_ref="theirs", event_family="deals"))
    set_source(as_kee, by_key=True)
    drafts = [
        make_draft(as_kee, source="crm"),
        make_draft(as_kee, dedupe_key="github:ci:pr-1:v1"),
        make_draft(as_kee, source="crm"),
        make_draft(as_kee, source="mail"),
    ]
    services.post_many(poster=Poster.of(as_kee), drafts=drafts, now=T0)
    assert [(entry.kind, entry.group_key, entry.count) for entry in flushed(as_kee)] == [
        ("item", None, 1),
        ("digest_snapshot", "crm:theirs:deals", 2),
        ("digest_snapshot", "github:pr-1:ci", 1),
    ]


def test_hook_may_flush_at_once_and_break_the_thread(as_kee: Caller, hook: Callable[..., None]) -> None:
    def group_of(fact: Fact) -> Group:
        return Group(
            resource_ref="deal",
            event_family="deals",
            flush_class="immediate" if fact.event_type == "lost" else "normal",
            break_thread=fact.event_type == "reopened",
        )

    hook(group_of)
    for event in ("called", "lost", "reopened"):
        post(as_kee, source="crm", event_type=event)
    first, second = flushed(as_kee)
    assert [(one.count, one.flush_reason) for one in (first, second)] == [(2, "immediate"), (1, "window")]
    assert first.thread != second.thread


def words(owner: Caller) -> tuple[str | None, str]:
    (entry,) = flushed(owner)
    return entry.title, entry.summary


def in_one_group(fact: Fact) -> Group:
    return Group(resource_ref="deal:7", event_family="deals", summary_hint=f"Hint of {fact.get('deal.tags.0')}")


def test_a_snapshot_speaks_the_words_of_its_source(as_kee: Caller, hook: Callable[..., None]) -> None:
    def sum_up(facts: Sequence[Fact], context: Context) -> tuple[str, str]:
        tags = ", ".join(fact.get("deal.tags.0") or "?" for fact in facts)
        return f"{context.count} {context.event_family} on {context.resource_ref}", f"Tags: {tags}"

    hook(in_one_group, summarize_thread=sum_up)
    tags: list[Any] = [["hot"], [1.5], [True], [None], [{"a": 1}], [], "hot"]
    for number, tag in enumerate(tags):
        post(as_kee, source="crm", metadata={"deal": {"tags": tag, "id": number}})
    assert words(as_kee) == ("7 deals on deal:7", "Tags: hot, 1.5, true, ?, ?, ?, ?")


def test_the_database_cuts_out_of_metadata_what_python_does(as_kee: Caller) -> None:
    payloads = [check_run("build", "failure", 135), STATUS, {}, {"branches": [{"name": 7}]}]
    drafts = [make_draft(as_kee, source="github_repo_ci", summary="s" * 999, metadata=one) for one in payloads]
    posted = [services.post(poster=Poster.of(as_kee), draft=draft, now=T0).id for draft in drafts]
    stored = selectors.facts("github_repo_ci", posted)
    assert [stored[pk] for pk in posted] == [hooks.fact_of(draft) for draft in drafts]


@pytest.mark.parametrize(
    "summarize",
    [
        lambda facts, context: None,
        lambda facts, context: ("", "x"),
        lambda facts, context: ("x\x00", "y"),
        lambda facts, context: ("x",),
        lambda facts, context: ("x", 7),
        fails,
    ],
    ids=["nothing", "no title", "NUL", "one text", "a number", "an error"],
)
def test_without_a_usable_summary_the_hint_or_the_default_stands(
    as_kee: Caller, hook: Callable[..., None], summarize: Any
) -> None:
    hook(in_one_group, summarize_thread=summarize)
    post(as_kee, source="crm", metadata={"deal": {"tags": ["hot"]}})
    assert words(as_kee) == ("deals on deal:7: 1 receipt", "Hint of hot")
    group = Group(resource_ref="deal:8", event_family="deals", summary_hint="Posted hint")
    post(as_kee, source="crm", group=group)
    assert flushed(as_kee)[-1].summary == "Posted hint"


def test_long_summaries_are_cut_and_hooks_see_the_newest_receipts(as_kee: Caller, hook: Callable[..., None]) -> None:
    seen: list[int] = []

    def sum_up(facts: Sequence[Fact], context: Context) -> tuple[str, str]:
        seen.append(len(facts))
        return "t" * 500, f"{context.count} " + facts[-1].summary + "s" * 5000

    hook(in_one_group, summarize_thread=sum_up)
    set_policy(as_kee, max_items=60)
    for number in range(60):
        post(as_kee, source="crm", summary=f"call {number} " + "x" * 1000)
    (entry,) = read(as_kee).entries
    assert (seen, len(entry.title or ""), len(entry.summary)) == ([50], 200, 1000)
    assert entry.summary.startswith("60 call 59 ")


def event(by: str = "hubot", **members: Any) -> dict[str, Any]:
    return {"repository": {"full_name": "acme/site"}, "sender": {"login": by}, **members}


def check_run(name: str, conclusion: str | None, *pull_requests: int) -> dict[str, Any]:
    numbers = [{"id": 1, "number": number} for number in pull_requests]
    suite = {"head_branch": "changes", "pull_requests": numbers}
    status = "completed" if conclusion else "in_progress"
    run = {"name": name, "status": status, "conclusion": conclusion, "check_suite": suite, "pull_requests": numbers}
    return event(check_run=run)


PR: dict[str, Any] = {"pull_request": {"number": 135}}
ISSUE: dict[str, Any] = {"issue": {"number": 9}}
ON_PR: dict[str, Any] = {
    "issue": {"number": 135, "pull_request": {"url": "https://api.github.com/repos/acme/site/pulls/135"}}
}
STATUS = event(context="lint", state="error", branches=[{"name": "main"}])


@pytest.mark.parametrize(
    ("source", "name", "payload", "expected"),
    [
        ("github_repo", "pull_request_review.submitted", event(**PR), ("pr:135@acme/site", "review_comments", False)),
        ("github_repo", "pull_request_review", PR, ("pr:135", "review_comments", False)),
        ("github_repo", "issue_comment", event(**ON_PR), ("pr:135@acme/site", "review_comments", False)),
        ("github_repo", "issue_comment", event(**ISSUE), ("issue:9@acme/site", "issue_comments", False)),
        ("github_repo", "pull_request", event(**PR, action="opened"), ("pr:135@acme/site", "pr_updates", False)),
        ("github_repo", "pull_request", event(**PR, action="closed"), ("pr:135@acme/site", "pr_updates", True)),
        ("github_repo", "push", {}, None),
        ("github_repo", "pull_request_review", {}, None),
        ("github_repo_ci", "check_run", check_run("build", "failure", 135), ("pr:135@acme/site", "ci_updates", False)),
        (
            "github_repo_ci",
            "check_run.completed",
            check_run("b", None),
            ("branch:changes@acme/site", "ci_updates", False),
        ),
        ("github_repo_ci", "status", STATUS, ("branch:main@acme/site", "ci_updates", False)),
        ("github_repo_ci", "status", STATUS | {"branches": []}, None),
        ("github_repo_ci", "deployment", check_run("build", "failure", 135), None),
    ],
)
def test_github_events_are_grouped_by_pull_request_or_branch(
    as_kee: Caller, source: str, name: str, payload: dict[str, Any], expected: tuple[str, str, bool] | None
) -> None:
    draft = make_draft(as_kee, source=source, event_type=name, metadata=payload)
    found = selectors.group_of(as_kee.tenant_id, draft)
    assert (found and (found.resource_ref, found.event_family, found.is_immediate)) == expected


def test_github_reviews_and_checks_are_two_digests(as_kee: Caller) -> None:
    for name, payload in (
        ("pull_request_review_comment", event(comment={"body": "Use more emojis."}, **PR)),
        ("pull_request_review_comment", event("mona", comment={"body": "Done,\n  thank you."}, **PR)),
        ("pull_request_review", event(review={"body": None, "state": "approved"}, **PR)),
    ):
        post(as_kee, source="github_repo", event_type=name, metadata=payload)
    for check, conclusion in (("build", None), ("lint", "success"), ("build", "failure"), ("docs", None)):
        payload = check_run(check, conclusion, 135)
        post(as_kee, source="github_repo_ci", event_type="check_run", metadata=payload)
    assert {(entry.title, entry.summary) for entry in flushed(as_kee)} == {
        ("3 comments on pr:135@acme/site", "By hubot (2), mona. Latest verdict: approved. Latest: Done, thank you."),
        ("CI on pr:135@acme/site: 1 failed", "failed: build; 1 passed; 1 not finished; 4 updates in all"),
    }


WON = ReceiptOutput(
    **dict.fromkeys(ReceiptOutput.model_fields)
    | {
        "pk": 1,
        "receipt_id": "R.1",
        "uuid": "",
        "recipient_ai": "Kee",
        "source_system": "crm",
        "event_type": "deal_won",
        "dedupe_key": "k",
        "summary": "Won",
        "metadata": {},
        "requires_action": False,
        "suggested_next_step": "Congratulate.",
        "surface": "inbox",
        "created_at": T0,
    }
)


def test_a_source_says_what_to_do_next_before_the_table(
    hook: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    actions: dict[str, Any] = {"deal_won": NextActionOutput(description="Ship it."), "odd": "Ship it."}
    hook(
        next_action=lambda receipt: (
            actions.get(receipt.event_type) or (fails() if receipt.event_type == "bad" else None)
        )
    )
    assert hooks.next_action(WON).description == "Ship it."
    assert hooks.next_action(WON.model_copy(update={"event_type": "deal_lost"})).description == "Congratulate."
    assert hooks.next_action(WON.model_copy(update={"source_system": "other"})).description == "Congratulate."
    for faulty in ("odd", "bad"):
        caplog.clear()
        assert hooks.next_action(WON.model_copy(update={"event_type": faulty})).description == "Congratulate."
        assert "the hook of crm" in caplog.text


def test_what_comes_from_github_leads_to_its_page(as_kee: Caller) -> None:
    payload = {"comment": {"html_url": "https://github.com/acme/site/pull/135#c1"}, "issue": {"number": 135}}
    comment = WON.model_copy(
        update={"source_system": "github_repo", "event_type": "issue_comment", "metadata": payload}
    )
    assert "pull/135#c1" in hooks.next_action(comment).description
    assert hooks.next_action(comment.model_copy(update={"metadata": {}})).description == "Congratulate."
