"""Who is woken, for what, how often, and who is left alone."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings
from standardwebhooks import Webhook

from apps.activation import services
from apps.activation.models import Target
from apps.activation.services import TargetChange, waking
from apps.activation.signals import target_due
from apps.activation.states import State
from apps.digests import selectors as inboxes
from apps.digests import services as digests
from apps.digests.selectors import Mark
from apps.principals import services as principals
from apps.principals.models import Principal
from apps.principals.tenancy import Caller
from tests import remote as remotes
from tests.activation.making import dispatch_of, is_due, make_target, wake
from tests.digests.makers import ack_through, make_draft, pass_time, post, post_grouped, read
from tests.factories import T0, make_caller
from tests.remote import Remote, says


def ack_all(reader: Caller) -> None:
    ack_through(reader, read(reader, limit=500).entries[-1].token)


def look(reader: Caller, target: Target) -> bool:
    """Whether the tick would have it called, and whether calling it does call; both agree."""
    due = is_due(target)
    assert wake(target) is due
    return due


def test_a_wake_is_a_signed_message_that_says_how_much_is_there_and_not_what(as_kee: Caller, agent: Remote) -> None:
    made = make_target(as_kee, f"{agent.url}/hook")
    entry = post(as_kee, title="Payroll of May", summary="Ada earns more than Bob").entry_ref
    post_grouped(as_kee)

    assert look(as_kee, made.target)

    (call,) = agent.received
    message = Webhook(made.secret).verify(call.body, dict(call.headers))
    assert (call.path, message["type"]) == ("/hook", "inbox.changed")
    assert message["data"] == {
        "target": str(made.target),
        "principal": "Kee",
        "as_of": 1,
        "unread": 2,
        "visible": 1,
        "pending": 1,
        "newest": [{"ref": entry, "kind": "item", "sequence": 1, "count": 1}],
    }
    assert b"Payroll" not in call.body
    assert b"Ada" not in call.body
    done = dispatch_of(made.target)
    assert (done.covered_seq, done.sent, done.failed, done.attempts, done.result) == (1, 1, 0, 0, "HTTP 200")
    # To be told is not to be shown.
    assert read(as_kee).entries[0].ref == entry
    assert inboxes.inbox_receipts(as_kee.principal_id)[-1].delivered_at is None


def test_titles_are_named_to_a_target_that_asks_for_them_and_no_more_than_five(as_kee: Caller, agent: Remote) -> None:
    made = make_target(as_kee, agent.url, with_titles=True)
    for number in range(7):
        post(as_kee, title=f"Event {number}", summary="The summary stays inside.")
    wake(made.target)
    newest = agent.received[0].json["data"]["newest"]
    assert [entry["title"] for entry in newest] == [f"Event {number}" for number in (6, 5, 4, 3, 2)]
    assert newest[0]["source_systems"] == ["github"]
    assert b"stays inside" not in agent.received[0].body


def test_a_burst_of_a_thousand_receipts_is_one_wake(as_kee: Caller, agent: Remote) -> None:
    target = make_target(as_kee, agent.url).target
    for _ in range(20):
        drafts = [make_draft(as_kee) for _ in range(50)]
        digests.post_many(poster=digests.Poster.of(as_kee), drafts=drafts, now=T0)
        look(as_kee, target)
    assert len(agent.received) == 1
    assert agent.received[0].json["data"]["visible"] == 50

    pass_time(600)
    assert look(as_kee, target)
    assert agent.received[1].json["data"]["visible"] == 1000
    pass_time(3600)
    assert not look(as_kee, target), "it has been told of all of them"
    assert len(agent.received) == 2


def test_once_all_that_it_was_woken_for_is_acked_something_new_wakes_at_once(as_kee: Caller, agent: Remote) -> None:
    target = make_target(as_kee, agent.url).target
    post(as_kee)
    post(as_kee)
    assert look(as_kee, target)
    seen = read(as_kee)
    post(as_kee)
    assert not look(as_kee, target)
    ack_through(as_kee, seen.entries[0].token)
    assert not look(as_kee, target), "one of the two is left"
    ack_through(as_kee, seen.entries[1].token)
    assert look(as_kee, target)
    ack_all(as_kee)
    assert not look(as_kee, target)
    post(as_kee)
    assert look(as_kee, target)


def test_a_digest_that_grows_is_not_yet_acked(as_kee: Caller, agent: Remote) -> None:
    target = make_target(as_kee, agent.url).target
    post_grouped(as_kee, flush_class="immediate")
    assert look(as_kee, target)
    told = read(as_kee)
    for _ in range(3):
        post_grouped(as_kee, flush_class="immediate")
        assert not look(as_kee, target), "its head is newer than the wake, what the wake was for is in it"
    ack_through(as_kee, told.entries[0].token)
    assert look(as_kee, target)


def test_once_what_it_was_woken_for_is_acked_receipt_by_receipt_what_has_joined_it_wakes_at_once(
    as_kee: Caller, agent: Remote
) -> None:
    target = make_target(as_kee, agent.url).target
    told = post_grouped(as_kee, flush_class="immediate")
    assert look(as_kee, target)
    joined = post_grouped(as_kee, flush_class="immediate")
    assert not look(as_kee, target)
    digests.ack_receipts(principal_id=as_kee.principal_id, receipt_pks=[told.id], now=T0)
    assert [entry.receipt_pks for entry in read(as_kee).entries] == [[joined.id]]
    assert look(as_kee, target), "nothing is left of what it was told of"


def test_what_an_ack_leaves_over_wakes_nobody(as_kee: Caller, agent: Remote) -> None:
    target = make_target(as_kee, agent.url, notify_lease=timedelta(0)).target
    first = post_grouped(as_kee)
    post_grouped(as_kee, flush_class="immediate")
    assert look(as_kee, target)
    digests.ack_receipts(principal_id=as_kee.principal_id, receipt_pks=[first.id], now=T0)
    assert [entry.flush_reason for entry in read(as_kee).entries] == ["narrow"]
    assert not look(as_kee, target)


def test_what_was_never_told_wakes_though_an_ack_has_narrowed_it(as_kee: Caller, agent: Remote) -> None:
    target = make_target(as_kee, agent.url).target
    post_grouped(as_kee, flush_class="immediate")
    assert look(as_kee, target)
    told = read(as_kee)
    post_grouped(as_kee, flush_class="immediate")
    ack_through(as_kee, told.entries[0].token)
    assert [(entry.flush_reason, entry.count) for entry in read(as_kee).entries] == [("narrow", 1)]
    assert look(as_kee, target), "the second receipt has only ever been in entries that nobody was told of"
    assert not look(as_kee, target)


def test_what_still_waits_in_a_buffer_wakes_nobody(as_kee: Caller, agent: Remote) -> None:
    target = make_target(as_kee, agent.url).target
    post_grouped(as_kee)
    assert not look(as_kee, target)
    pass_time(31)
    digests.flush_due()
    assert look(as_kee, target)


def test_fewer_than_wanted_wake_nobody(as_kee: Caller, agent: Remote) -> None:
    target = make_target(as_kee, agent.url, min_unacked=3).target
    for _ in range(2):
        post(as_kee)
        assert not look(as_kee, target)
    post(as_kee)
    assert look(as_kee, target)


def test_what_was_acked_after_the_look_wakes_nobody(as_kee: Caller, agent: Remote) -> None:
    target = make_target(as_kee, agent.url).target
    post(as_kee)
    assert is_due(target)
    ack_all(as_kee)
    assert not wake(target)
    assert agent.received == []
    assert dispatch_of(target).fence == 0


def test_nobody_is_woken_for_anothers_inbox(as_kee: Caller, agent: Remote) -> None:
    hexy = make_caller(Principal.objects.get(pk=as_kee.principal_id).tenant, "Hexy")
    target = make_target(hexy, agent.url).target
    post(as_kee)
    assert not look(as_kee, target)
    post(hexy)
    assert look(as_kee, target)
    assert agent.received[0].json["data"]["principal"] == "Hexy"


def test_a_disabled_principal_and_a_stopped_target_are_left_alone(as_kee: Caller, agent: Remote) -> None:
    target = make_target(as_kee, agent.url).target
    post(as_kee)
    services.stop(target_id=target.pk, reason="enough", now=T0)
    assert not look(as_kee, target)
    services.resume(target_id=target.pk, now=T0)
    principals.disable_principal(principal_id=as_kee.principal_id, now=T0)
    assert not look(as_kee, target)
    Principal.objects.filter(pk=as_kee.principal_id).update(disabled_at=None)
    assert look(as_kee, target)


def test_failures_are_tried_again_after_5_10_20_up_to_300_seconds(as_kee: Caller, agent: Remote) -> None:
    target = make_target(as_kee, agent.url).target
    post(as_kee)
    agent.always = says(503)
    for number, pause in enumerate((5, 10, 20, 40, 80, 160, 300, 300), start=1):
        assert look(as_kee, target)
        assert (dispatch_of(target).attempts, dispatch_of(target).result) == (number, "HTTP 503")
        pass_time(pause - 0.5)
        assert not look(as_kee, target)
        pass_time(0.5)
    agent.always = says(204, b"")
    assert look(as_kee, target)
    done = dispatch_of(target)
    assert (done.attempts, done.sent, done.failed, done.wasted, done.covered_seq) == (0, 1, 8, 0, 1)
    ids = {call.headers["webhook-id"] for call in agent.received}
    assert len(ids) == 1, "a repetition is known by its id"


def test_nothing_is_tried_again_for_what_was_acked_meanwhile(as_kee: Caller, agent: Remote) -> None:
    target = make_target(as_kee, agent.url).target
    post(as_kee)
    agent.always = says(500)
    assert look(as_kee, target)
    ack_all(as_kee)
    pass_time(10)
    assert not look(as_kee, target)


@pytest.mark.parametrize("status", [404, 409, 410, 422])
def test_an_address_that_does_not_want_to_be_called_is_called_no_more(
    as_kee: Caller, agent: Remote, status: int
) -> None:
    target = make_target(as_kee, agent.url).target
    post(as_kee)
    agent.always = says(status)
    assert look(as_kee, target)
    stopped = dispatch_of(target).target
    assert (stopped.state, stopped.stopped_reason) == (State.STOPPED, f"HTTP {status}")
    pass_time(3600)
    assert not look(as_kee, target)
    services.resume(target_id=target.pk, now=T0)
    agent.always = says(200)
    assert look(as_kee, target)
    assert dispatch_of(target).target.stopped_reason is None


@pytest.mark.parametrize("how", ["resumed", "moved"])
def test_a_target_that_is_begun_anew_is_called_at_once_and_rests_as_after_a_first_failure(
    as_kee: Caller, agent: Remote, how: str
) -> None:
    target = make_target(as_kee, agent.url).target
    post(as_kee)
    agent.always = says(503)
    for _ in range(4):
        assert look(as_kee, target)
        pass_time(300)
    assert look(as_kee, target)
    assert not look(as_kee, target)
    if how == "moved":
        change = TargetChange(url=f"{agent.url}/new")
        services.change(principal_id=as_kee.principal_id, target_id=target.pk, change=change, now=T0)
    else:
        services.resume(target_id=target.pk, now=T0)
    assert look(as_kee, target)
    assert dispatch_of(target).attempts == 1


def test_a_target_that_is_stopped_keeps_its_first_reason(as_kee: Caller, agent: Remote) -> None:
    target = make_target(as_kee, agent.url).target
    post(as_kee)
    agent.always = says(410)
    assert look(as_kee, target)
    change = TargetChange(enabled=False)
    services.change(principal_id=as_kee.principal_id, target_id=target.pk, change=change, now=T0)
    assert dispatch_of(target).target.stopped_reason == "HTTP 410"


@pytest.mark.parametrize("status", [304, 400, 401, 403, 405, 429, 500, 502, 503])
def test_any_other_refusal_is_a_failure_that_is_tried_again(as_kee: Caller, agent: Remote, status: int) -> None:
    target = make_target(as_kee, agent.url).target
    post(as_kee)
    agent.always = says(status, b"")
    assert look(as_kee, target)
    done = dispatch_of(target)
    assert (done.target.state, done.attempts, done.sent, done.covered_seq) == (State.ENABLED, 1, 0, 0)


@pytest.mark.parametrize(
    ("behaviour", "code"),
    [
        (remotes.hangs, "timed_out"),
        (remotes.hangs_up, "disconnected"),
        (says(302, b"", Location="https://elsewhere.example/"), "redirected"),
    ],
)
def test_a_bad_answer_is_a_failure(
    as_kee: Caller, agent: Remote, monkeypatch: pytest.MonkeyPatch, behaviour: Any, code: str
) -> None:
    monkeypatch.setattr(waking, "_DEADLINE", timedelta(seconds=1 if behaviour is remotes.hangs else 30))
    target = make_target(as_kee, agent.url).target
    post(as_kee)
    agent.always = behaviour
    assert look(as_kee, target)
    done = dispatch_of(target)
    assert (done.result or "").startswith(f"{code}: ")
    assert (done.attempts, done.sent, len(agent.received)) == (1, 0, 1)


@pytest.mark.parametrize("behaviour", [remotes.floods, remotes.drips])
def test_who_answers_well_is_woken_whatever_it_adds(as_kee: Caller, agent: Remote, behaviour: Any) -> None:
    target = make_target(as_kee, agent.url).target
    post(as_kee)
    agent.always = behaviour
    assert look(as_kee, target)
    done = dispatch_of(target)
    assert (done.result, done.attempts, done.sent, done.failed) == ("HTTP 200", 0, 1, 0)


def test_a_call_that_can_not_be_made_for_any_reason_is_a_failure_that_is_noted(
    as_kee: Caller, agent: Remote, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def break_down(*_: Any, **__: Any) -> None:
        raise ValueError("unforeseen")

    monkeypatch.setattr("apps.core.outbound.post", break_down)
    target = make_target(as_kee, agent.url).target
    post(as_kee)
    assert look(as_kee, target)
    done = dispatch_of(target)
    assert ((done.result or "").split(":")[0], done.attempts, done.failed) == ("defect", 1, 1)
    assert "unforeseen" in caplog.text


@pytest.mark.parametrize(
    "url", ["https://10.0.0.1/hook", "https://169.254.169.254/latest", "http://1.1.1.1/hook", "http://0177.0.0.1/"]
)
def test_a_private_place_is_not_called_even_if_it_came_to_be_stored(as_kee: Caller, url: str) -> None:
    target = make_target(as_kee, url).target
    post(as_kee)
    assert look(as_kee, target)
    assert (dispatch_of(target).result or "").startswith("forbidden_endpoint: ")


def test_loopback_is_called_only_where_the_deployment_allows_it(
    as_kee: Caller, agent: Remote, settings: Settings
) -> None:
    target = make_target(as_kee, agent.url).target
    post(as_kee)
    settings.ALLOW_LOOPBACK = False
    assert look(as_kee, target)
    assert (dispatch_of(target).result or "").startswith("forbidden_endpoint: ")
    assert agent.received == []


def test_a_target_whose_secret_can_not_be_opened_is_stopped(as_kee: Caller, agent: Remote, settings: Settings) -> None:
    target = make_target(as_kee, agent.url).target
    post(as_kee)
    settings.SEALING_KEYS = ["another"]
    assert look(as_kee, target)
    assert "secret" in (dispatch_of(target).target.stopped_reason or "")
    assert agent.received == []


def test_an_agent_that_acks_while_it_is_called_was_not_woken_in_vain(as_kee: Caller, agent: Remote) -> None:
    target = make_target(as_kee, agent.url).target
    mark = Mark(tenant_id=as_kee.tenant_id, principal_id=as_kee.principal_id, sequence=1)
    posted = post(as_kee)
    claim = waking._claim(target.pk)
    assert claim is not None
    digests.ack_receipts(
        principal_id=as_kee.principal_id, receipt_pks=[posted.id], now=claim.claimed_at + timedelta(milliseconds=1)
    )
    waking._note(claim, waking._call(claim.call))
    assert not inboxes.anything_left(mark)
    assert (dispatch_of(target).sent, dispatch_of(target).wasted) == (1, 0)


def test_a_wake_that_leaves_something_to_read_was_not_in_vain_though_all_that_it_names_is_acked(
    as_kee: Caller, agent: Remote
) -> None:
    target = make_target(as_kee, agent.url).target
    oldest, *named = [post(as_kee) for _ in range(6)]
    claim = waking._claim(target.pk)
    assert claim is not None
    assert claim.receipt_pks == [one.id for one in named[::-1]]
    for one in named:
        digests.ack_receipts(principal_id=as_kee.principal_id, receipt_pks=[one.id], now=claim.claimed_at)
    waking._note(claim, waking._call(claim.call))
    assert (dispatch_of(target).sent, dispatch_of(target).wasted) == (1, 0)
    assert [entry.receipt_ids for entry in read(as_kee).entries] == [[oldest.receipt_id]]


def test_a_post_neither_knows_of_targets_nor_pays_for_them(as_kee: Caller) -> None:
    def statements() -> list[str]:
        with CaptureQueriesContext(connection) as captured:
            post(as_kee)
            post_grouped(as_kee)
        return [one["sql"] for one in captured.captured_queries]

    post(as_kee)
    post_grouped(as_kee)
    without = statements()
    for number in range(5):
        make_target(as_kee, f"https://agent.example/{number}")
    with_targets = statements()
    assert len(with_targets) == len(without)
    assert not [text for text in with_targets if "activation" in text]


def test_the_tick_alone_finds_whom_to_wake(as_kee: Caller, agent: Remote) -> None:
    from apps.activation import ticks  # noqa: PLC0415

    heard: list[tuple[int, int]] = []

    def hear(*, tenant_id: int, target_id: int, **_: Any) -> None:
        heard.append((tenant_id, target_id))

    target = make_target(as_kee, agent.url).target
    target_due.connect(hear)
    try:
        ticks.announce_due()
        assert heard == []
        post(as_kee)
        ticks.announce_due()
    finally:
        target_due.disconnect(hear)
    assert heard == [(target.tenant_id, target.pk)]


@pytest.mark.parametrize(
    ("statement", "constraint"),
    [
        ("update activation_target set kind = 'pigeon'", "activation_target_kind_known"),
        ("update activation_target set state = 'asleep'", "activation_target_stopped_has_a_reason"),
        ("update activation_target set state = 'stopped'", "activation_target_stopped_has_a_reason"),
        ("update activation_target set stopped_reason = 'x'", "activation_target_stopped_has_a_reason"),
        ("update activation_target set min_unacked = 0", "activation_target_policy_possible"),
        ("update activation_target set notify_lease = interval '8 days'", "activation_target_policy_possible"),
        ("update activation_target set former_secret = 'x'", "activation_target_former_secret_has_an_end"),
        ("update activation_target set url = 'https://agent.example/'", "activation_target_url_once"),
        ("update activation_dispatch set attempts = -1", "activation_dispatch_counts_from_zero"),
        ("update activation_dispatch set wasted = 1", "activation_dispatch_counts_from_zero"),
    ],
)
def test_the_database_refuses_a_contradiction(as_kee: Caller, statement: str, constraint: str) -> None:
    make_target(as_kee, "https://agent.example/1")
    make_target(as_kee, "https://agent.example/2")
    with pytest.raises(IntegrityError, match=constraint), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement)
