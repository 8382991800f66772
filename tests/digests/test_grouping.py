"""Rule 1: where a receipt's group comes from, and what a digest is called."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from apps.digests import hooks, selectors, services
from apps.digests.grouping import Key
from apps.digests.hooks import Context, Fact, Hook
from apps.digests.services import Group
from apps.digests.shapes import EntryOutput, NextActionOutput, ReceiptOutput
from apps.principals.tenancy import Caller
from apps.receipts.errors import DuplicateReceipt
from apps.receipts.models import Receipt
from tests.digests import github_payloads as github
from tests.digests.makers import make_draft, pass_time, post, post_grouped, read, unsound
from tests.factories import T0


@pytest.fixture(autouse=True)
def sound(as_kee: Caller) -> Iterator[None]:
    yield
    assert unsound() == {}


def opt_in(owner: Caller, source: str = "github") -> None:
    services.set_source(tenant_id=owner.tenant_id, name=source, rate_per_hour=None, groups_by_dedupe_key=True)


def opt_out(owner: Caller, source: str = "github") -> None:
    services.set_source(tenant_id=owner.tenant_id, name=source, rate_per_hour=None, groups_by_dedupe_key=False)


def published(owner: Caller) -> list[EntryOutput]:
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
    if hooks.hook_of("crm") is not None:
        hooks.unregister("crm")


def test_posted_group_precedes_the_hook(as_kee: Caller, hook: Callable[..., None]) -> None:
    hook(lambda fact: Group(resource_ref="theirs", event_family="deals"))
    opt_in(as_kee, "crm")
    post_grouped(as_kee, "ours", source="crm")
    post(as_kee, source="crm")
    assert [entry.group_key for entry in published(as_kee)] == ["crm:ours:ci", "crm:theirs:deals"]


def test_hook_group_precedes_the_dedupe_key(as_kee: Caller, hook: Callable[..., None]) -> None:
    def group_of(fact: Fact) -> Group | None:
        deal = fact.get("deal.id")
        return Group(resource_ref=f"deal:{deal}", event_family="deals") if deal else None

    hook(group_of)
    opt_in(as_kee, "crm")
    post(as_kee, source="crm", dedupe_key="crm:call:9:v1", metadata={"deal": {"id": 7}})
    post(as_kee, source="crm", dedupe_key="crm:call:9:v2", metadata={"deal": "none"})
    assert [entry.group_key for entry in published(as_kee)] == ["crm:deal:7:deals", "crm:9:call"]


def test_half_a_group_is_none_and_an_empty_one_is_ignored(as_kee: Caller, hook: Callable[..., None]) -> None:
    hook(lambda fact: Group(resource_ref="theirs", event_family="deals"))
    post(as_kee, source="crm", group=Group(resource_ref="deal:7"))
    post(as_kee, source="crm", group=Group())
    assert [entry.kind for entry in read(as_kee).entries] == ["item"]
    assert read(as_kee).pending == 1


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
    opt_in(as_kee)
    found = selectors.group_of(as_kee.tenant_id, draft)
    assert (found and (found.resource_ref, found.event_family)) == expected


def fails(*_: object) -> Any:
    raise LookupError("no such deal")


@pytest.mark.parametrize(
    "group_of",
    [
        fails,
        lambda fact: Group(resource_ref=7, event_family="deals"),  # type: ignore[arg-type]
        lambda fact: Group(resource_ref="deal:\ud83d", event_family="deals"),
        lambda fact: Group(resource_ref="deal:7", event_family="deals", summary_hint="\x00"),
        lambda fact: ("deal:7", "deals"),
    ],
    ids=["an error", "a number", "half a pair", "a NUL", "no group"],
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


def test_hook_group_does_not_change_the_content_digest(as_kee: Caller, hook: Callable[..., None]) -> None:
    draft = make_draft(as_kee, source="crm")
    posted = services.post(poster=services.Poster.of(as_kee), draft=draft, now=T0)
    hook(lambda fact: Group(resource_ref="theirs", event_family="deals"))
    with pytest.raises(DuplicateReceipt) as refusal:
        services.post(poster=services.Poster.of(as_kee), draft=draft, now=T0)
    assert refusal.value.extra["existing_receipt_id"] == posted.receipt_id
    assert Receipt.objects.get().resource_ref is None


def test_a_batch_is_grouped_like_single_posts(as_kee: Caller, hook: Callable[..., None]) -> None:
    hook(lambda fact: Group(resource_ref="theirs", event_family="deals"))
    opt_in(as_kee)
    drafts = [
        make_draft(as_kee, source="crm"),
        make_draft(as_kee, dedupe_key="github:ci:pr-1:v1"),
        make_draft(as_kee, source="crm"),
        make_draft(as_kee, source="mail"),
    ]
    services.post_many(poster=services.Poster.of(as_kee), drafts=drafts, now=T0)
    assert [(entry.kind, entry.group_key, entry.count) for entry in published(as_kee)] == [
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
    first, second = published(as_kee)
    assert [(one.count, one.flush_reason) for one in (first, second)] == [(2, "immediate"), (1, "window")]
    assert first.thread != second.thread


def test_opting_out_flushes_the_buffers_of_the_source(as_kee: Caller) -> None:
    opt_in(as_kee)
    opt_in(as_kee, "gitlab")
    post(as_kee, dedupe_key="github:ci:pr-1:v1")
    post(as_kee, source="gitlab", dedupe_key="gitlab:ci:pr-1:v1")
    opt_in(as_kee)  # nothing changes by saying it twice
    assert read(as_kee).entries == []
    opt_out(as_kee)
    assert [(one.source_systems, one.flush_reason) for one in read(as_kee).entries] == [(["github"], "lifecycle")]
    assert read(as_kee).pending == 1
    post(as_kee, dedupe_key="github:ci:pr-1:v2")
    assert [one.kind for one in read(as_kee).entries] == ["digest_snapshot", "item"]


def words(owner: Caller) -> tuple[str | None, str]:
    (entry,) = published(owner)
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
    payloads = [github.check_run("build", "failure"), github.status("lint", "success"), {}, {"branches": [{"name": 7}]}]
    drafts = [make_draft(as_kee, source="github_repo_ci", summary="s" * 999, metadata=one) for one in payloads]
    posted = [services.post(poster=services.Poster.of(as_kee), draft=draft, now=T0).id for draft in drafts]
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
    assert words(as_kee) == ("1 deals on deal:7", "Hint of hot")
    group = Group(resource_ref="deal:8", event_family="deals", summary_hint="Posted hint")
    post(as_kee, source="crm", group=group)
    assert published(as_kee)[-1].summary == "Posted hint"


def test_long_summaries_are_cut_and_hooks_see_the_newest_receipts(as_kee: Caller, hook: Callable[..., None]) -> None:
    seen: list[int] = []

    def sum_up(facts: Sequence[Fact], context: Context) -> tuple[str, str]:
        seen.append(len(facts))
        return "t" * 500, f"{context.count} " + facts[-1].summary + "s" * 5000

    hook(in_one_group, summarize_thread=sum_up)
    services.set_policy(
        tenant_id=as_kee.tenant_id,
        principal_id=as_kee.principal_id,
        change=services.PolicyChange(max_items=60),
        now=T0,
    )
    for number in range(60):
        post(as_kee, source="crm", summary=f"call {number} " + "x" * 1000)
    (entry,) = read(as_kee).entries
    assert (seen, len(entry.title or ""), len(entry.summary)) == ([50], 200, 1000)
    assert entry.summary.startswith("60 call 59 ")


def key(resource: str, family: str, *, is_immediate: bool = False, source: str = "github_repo") -> Key:
    return Key(source_system=source, resource_ref=resource, event_family=family, is_immediate=is_immediate)


def ci(resource: str) -> Key:
    return key(resource, "ci_updates", source="github_repo_ci")


@pytest.mark.parametrize(
    ("source", "event", "payload", "expected"),
    [
        ("github_repo", "pull_request_review_comment", github.review_comment(135), key("pr:135@acme/site", "review_comments")),
        ("github_repo", "pull_request_review.submitted", github.review(135), key("pr:135@acme/site", "review_comments")),
        ("github_repo", "issue_comment", github.issue_comment(135, of_pull_request=True), key("pr:135@acme/site", "review_comments")),
        ("github_repo", "issue_comment", github.issue_comment(9, of_pull_request=False), key("issue:9@acme/site", "issue_comments")),
        ("github_repo", "pull_request", github.pull_request(135, "synchronize"), key("pr:135@acme/site", "pr_updates")),
        ("github_repo", "pull_request", github.pull_request(135, "closed"), key("pr:135@acme/site", "pr_updates", is_immediate=True)),
        ("github_repo", "pull_request_review", {"pull_request": {"number": 135}}, key("pr:135", "review_comments")),
        ("github_repo", "push", {}, None),
        ("github_repo", "pull_request_review", {}, None),
        ("github_repo_ci", "check_run", github.check_run("build", "failure"), ci("pr:135@acme/site")),
        ("github_repo_ci", "check_run.completed", github.check_run("build", None, pull_requests=()), ci("branch:changes@acme/site")),
        ("github_repo_ci", "check_run", github.check_run("build", None, pull_requests=(), branch=None), None),
        ("github_repo_ci", "workflow_run", github.workflow_run("CI", "success"), ci("branch:main@acme/site")),
        ("github_repo_ci", "status", github.status("lint", "error"), ci("branch:main@acme/site")),
        ("github_repo_ci", "status", github.status("lint", "error", branch=None), None),
        ("github_repo_ci", "deployment", github.check_run("build", "failure"), None),
        ("github_repo", "check_run", github.check_run("build", "failure"), None),
    ],
)  # fmt: skip
def test_github_events_are_grouped_by_pull_request_or_branch(
    as_kee: Caller, source: str, event: str, payload: dict[str, Any], expected: Key | None
) -> None:
    draft = make_draft(as_kee, source=source, event_type=event, metadata=payload)
    assert selectors.group_of(as_kee.tenant_id, draft) == expected


def test_github_reviews_and_checks_are_two_digests(as_kee: Caller) -> None:
    for event, payload in (
        ("pull_request_review_comment", github.review_comment(135, by="hubot")),
        ("pull_request_review_comment", github.review_comment(135, by="mona", body="Done,\n  thank you.")),
        ("pull_request_review", github.review(135, by="hubot", state="approved")),
    ):
        post(as_kee, source="github_repo", event_type=event, metadata=payload)
    for payload in (
        github.check_run("build", None),
        github.check_run("lint", "success"),
        github.check_run("build", "failure"),
        github.check_run("docs", None),
    ):
        post(as_kee, source="github_repo_ci", event_type="check_run", metadata=payload)
    said = {(entry.title, entry.summary) for entry in published(as_kee)}
    assert said == {
        ("3 comments on pr:135@acme/site", "By hubot (2), mona. Latest verdict: approved. Latest: Done, thank you."),
        ("CI on pr:135@acme/site: 1 failed", "failed: build; 1 passed; 1 not finished; 4 updates in all"),
    }


def test_a_source_has_one_hook() -> None:
    with pytest.raises(ValueError, match="has a hook already"):
        hooks.register(Hook(source_system="github_repo", group_of=nothing))


WON = ReceiptOutput(
    **dict.fromkeys(ReceiptOutput.model_fields)
    | {
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


def test_a_source_says_what_to_do_next_before_the_table(hook: Callable[..., None]) -> None:
    hook(
        next_action=lambda receipt: (
            NextActionOutput(description="Ship it.") if receipt.event_type == "deal_won" else None
        )
    )
    assert hooks.next_action(WON).description == "Ship it."
    assert hooks.next_action(WON.model_copy(update={"event_type": "deal_lost"})).description == "Congratulate."
    assert hooks.next_action(WON.model_copy(update={"source_system": "other"})).description == "Congratulate."


@pytest.mark.parametrize("action", [fails, lambda receipt: "Ship it."], ids=["an error", "no action"])
def test_a_faulty_next_action_is_logged_and_ignored(
    hook: Callable[..., None], caplog: pytest.LogCaptureFixture, action: Any
) -> None:
    hook(next_action=action)
    assert hooks.next_action(WON).description == "Congratulate."
    assert "the hook of crm" in caplog.text


def test_what_comes_from_github_leads_to_its_page(as_kee: Caller) -> None:
    payload = {"comment": {"html_url": "https://github.com/acme/site/pull/135#c1"}, "issue": {"number": 135}}
    comment = WON.model_copy(
        update={"source_system": "github_repo", "event_type": "issue_comment", "metadata": payload}
    )
    assert "pull/135#c1" in hooks.next_action(comment).description
    assert hooks.next_action(comment.model_copy(update={"metadata": {}})).description == "Congratulate."
