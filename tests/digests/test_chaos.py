"""What is promised holds while sessions die at random, and would not without the two fences that it stands on."""

import pytest

from apps.digests import sql
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller
from tests.digests.chaos import Chaos
from tests.factories import make_caller

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def chaos(tenant: Tenant, kee: Caller) -> Chaos:
    return Chaos(kee=kee, hexy=make_caller(tenant, "Hexy"))


def _survives(chaos: Chaos, seconds: float) -> None:
    chaos.run(seconds=seconds)
    assert chaos.violations() == []
    assert chaos.notes.refusals == []
    # It was chaos indeed.
    assert chaos.notes.kills > seconds / 5
    assert chaos.notes.unknown > seconds / 5
    assert len(chaos.notes.acknowledged) > seconds
    assert sum(note.certain for note in chaos.notes.acks) > seconds / 5


@pytest.mark.ci
def test_nothing_is_lost_doubled_or_acked_unseen_while_sessions_die(chaos: Chaos) -> None:
    _survives(chaos, 60)


@pytest.mark.long
def test_nothing_is_lost_doubled_or_acked_unseen_in_half_an_hour(chaos: Chaos) -> None:
    _survives(chaos, 1800)


def _is_caught(chaos: Chaos) -> None:
    """Rounds until the judge objects; a loud database is no objection."""
    for _ in range(60):
        chaos.run(seconds=2, kill_every=None, changers=0, rest=2)
        if chaos.violations():
            return
    pytest.fail("Nobody noticed that a fence is missing.")


@pytest.mark.ci
def test_rule_6_without_the_lock_of_the_inbox_the_judge_objects(chaos: Chaos, monkeypatch: pytest.MonkeyPatch) -> None:
    fence = "for no key update"
    locks = {name: text for name, text in vars(sql).items() if name.startswith("LOCK") and fence in text}
    assert {"LOCK", "LOCK_SEVERAL", "LOCK_BY_ID"} <= locks.keys()
    for name, text in locks.items():
        monkeypatch.setattr(sql, name, text.replace(f"{fence} skip locked", "").replace(fence, ""))
    _is_caught(chaos)


@pytest.mark.ci
@pytest.mark.parametrize("instead", ["superseded_by_seq > 0", "false"], ids=["too much", "too little"])
def test_rule_7_without_the_state_in_the_boundary_the_judge_objects(
    chaos: Chaos, monkeypatch: pytest.MonkeyPatch, instead: str
) -> None:
    fence = "superseded_by_seq > %(as_of)s"
    for name in ("ACK_THROUGH", "ENTRIES_ACKED_THROUGH"):
        statement = getattr(sql, name)
        assert fence in statement
        monkeypatch.setattr(sql, name, statement.replace(fence, instead))
    _is_caught(chaos)


@pytest.mark.ci
def test_rule_1_without_the_family_in_the_group_the_judge_objects(
    chaos: Chaos, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence = "and event_family = asked.event_family"
    assert fence in sql.OPEN_THREADS
    monkeypatch.setattr(sql, "OPEN_THREADS", sql.OPEN_THREADS.replace(fence, ""))
    _is_caught(chaos)
