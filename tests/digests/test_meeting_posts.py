"""Posts of one caller that meet in a web process: made in one transaction, each answered as it would be alone."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from django.db import connection
from prometheus_client import REGISTRY

from apps.core import coalescing, operations
from apps.core.errors import DomainError
from apps.core.schemas import parse
from apps.digests.services import locking
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as
from apps.receipts.models import Receipt
from tests.digests.makers import post, unsound
from tests.digests.test_races import race
from tests.factories import make_caller

pytestmark = pytest.mark.django_db(transaction=True)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture
def poster(kee: Caller, monkeypatch: pytest.MonkeyPatch) -> Caller:
    monkeypatch.setattr(coalescing, "_PATIENCE", 20.0)
    caller = replace(kee, source_systems=frozenset({"ci"}))
    with acting_as(caller):
        post(caller)  # its inbox is there
    return caller


def given(key: str, **more: Any) -> dict[str, Any]:
    return {"recipient_ai": "Kee", "source_system": "ci", "dedupe_key": key, "summary": "It happened.", **more}


def call(poster: Caller, receipt: dict[str, Any]) -> Any:
    declared = operations.find("post_receipt")
    return operations.call(declared, poster, parse(declared.input, receipt)).output


@contextmanager
def held(owner: Caller) -> Iterator[threading.Event]:
    """Somebody else holds the inbox until the event."""
    holding, release = threading.Event(), threading.Event()

    def hold() -> None:
        with acting_as(owner):
            locking.lock(principal_id=owner.principal_id)
            holding.set()
            assert release.wait(20)
        connection.close()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert holding.wait(20)
        yield release
    finally:
        release.set()
        thread.join()


def meeting(
    poster: Caller, receipts: list[dict[str, Any]], *, hear: Callable[[Any], None] = lambda answer: None
) -> list[Any]:
    """What becomes of these posts, which all come while an earlier one is at work; each is heard as it is stored."""
    line = operations._coalescer._waiting
    with held(poster) as release:

        def first() -> Any:
            return call(poster, given("first"))

        def later(receipt: dict[str, Any]) -> Callable[[], Any]:
            def rival() -> Any:
                until(lambda: bool(line))
                answer = call(poster, receipt)
                hear(answer)
                return answer

            return rival

        def let_go() -> None:
            until(lambda: sum(map(len, line.values())) == len(receipts))
            release.set()

        first_answer, *answers, _ = race(first, *map(later, receipts), let_go)
    assert first_answer.entry is not None
    assert not line
    return answers


def test_posts_that_meet_are_one_transaction_and_each_hears_its_own_answer(tenant: Tenant, poster: Caller) -> None:
    make_caller(tenant, "Hexy")
    with acting_as(poster):
        post(poster, source="ci", dedupe_key="old")
    stored, other, owed, old, foreign, nobody, proof = meeting(
        poster,
        [
            given("a"),
            given("b", recipient_ai="Hexy", title="B", metadata={"n": 1}),
            given("c", requires_action=True),
            given("old", summary="Another content."),
            given("d", source_system="gitlab"),
            given("e", recipient_ai="Nobody"),
            given("f", surface="ledger"),
        ],
    )
    assert [stored.dedupe_key, other.dedupe_key, owed.dedupe_key, proof.dedupe_key] == ["a", "b", "c", "f"]
    assert all(one.entry is not None for one in (stored, other, owed))
    assert proof.entry is None
    assert stored.created_at == other.created_at == owed.created_at == proof.created_at
    assert [one.code for one in (old, foreign, nobody) if isinstance(one, DomainError)] == [
        "dedupe_conflict",
        "not_this_caller",
        "unknown_recipient",
    ]
    with acting_as(poster):
        assert set(Receipt.objects.values_list("dedupe_key", flat=True)) >= {"first", "a", "b", "c", "old", "f"}
        assert not Receipt.objects.filter(dedupe_key__in=["d", "e"]).exists()
        assert unsound() == {}


def refusals() -> float:
    return (
        REGISTRY.get_sample_value("gatehouse_receipts_refused_total", {"source": "other", "reason": "not_this_caller"})
        or 0.0
    )


def test_a_group_keeps_no_inbox_while_another_is_held_and_counts_no_refusal_twice(
    tenant: Tenant, poster: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    hexy = make_caller(tenant, "Hexy")
    with acting_as(hexy):
        post(hexy)
    # Whoever waits for a lock without a limit of its own waits for longer than the test.
    options = connection.settings_dict["OPTIONS"]
    monkeypatch.setitem(options, "options", options["options"].replace("lock_timeout=10s", "lock_timeout=60s"))
    assert "lock_timeout=60s" in options["options"]
    before, heard = refusals(), set[str]()
    with held(hexy) as release:

        def hear(answer: Any) -> None:
            heard.add(answer.dedupe_key)
            if heard >= {"a", "c"}:
                release.set()

        receipts = [given("a"), given("b", recipient_ai="Hexy"), given("c"), given("d", source_system="gitlab")]
        *stored, foreign = meeting(poster, receipts, hear=hear)
    assert [one.dedupe_key for one in stored] == ["a", "b", "c"]
    assert foreign.code == "not_this_caller"
    assert refusals() == before + 1


def test_the_same_post_twice_at_once_is_stored_once(poster: Caller) -> None:
    answers = meeting(poster, [given("a"), given("a"), given("b")])
    refused = [one for one in answers if isinstance(one, DomainError)]
    assert [one.code for one in refused] == ["duplicate_receipt"]
    stored = [one for one in answers if not isinstance(one, DomainError)]
    assert refused[0].extra["existing_receipt_id"] == next(one.receipt_id for one in stored if one.dedupe_key == "a")


def test_callers_do_not_share_a_transaction(tenant: Tenant, poster: Caller) -> None:
    hexy = replace(make_caller(tenant, "Hexy"), source_systems=frozenset({"ci"}))
    with held(poster) as release:

        def other() -> Any:
            posted = call(hexy, given("b", recipient_ai="Hexy"))
            release.set()
            return posted

        outcomes = race(lambda: call(poster, given("a")), other)
    assert [posted.dedupe_key for posted in outcomes] == ["a", "b"]
