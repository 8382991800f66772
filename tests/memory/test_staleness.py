"""What is written is in the next envelope, whoever writes it and whoever reads it, out of a cache or not."""

import multiprocessing
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from multiprocessing.connection import Connection
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from apps.memory import cache, envelopes, services
from apps.memory.cache import Envelopes, Key, Stamp
from apps.memory.errors import UnknownSubject
from apps.memory.models import EnvelopeLoaded, Subject
from apps.memory.services import SubjectChange
from apps.memory.tools.envelopes import OfSubjects, get_memory_envelopes
from apps.principals.selectors import tenant_named
from apps.principals.services import rename_principal
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from tests.factories import T0, make_caller, make_tenant
from tests.memory.subjects import ALICE, add, change, envelope, facts, remember

DAY, TICK = timedelta(days=1), timedelta(microseconds=1)


@pytest.fixture
def kee(transactional_db: None) -> Iterator[Caller]:
    """An agent whose transactions end, so that envelopes are kept; none is kept yet."""
    cache.envelopes.begin_anew()
    yield make_caller(make_tenant("acme"))
    cache.envelopes.begin_anew()


def other(kee: Caller) -> Caller:
    with acting_as_system("test"):
        return make_caller(tenant_named(kee.tenant_slug), "Lee")


def statements(reader: Caller, **asked: Any) -> int:
    with acting_as(reader), CaptureQueriesContext(connection) as captured:
        envelope(reader, **asked)
    return len(captured)


def test_an_envelope_is_made_once_for_each_revision_and_viewer(kee: Caller) -> None:
    lee = other(kee)
    with acting_as(kee):
        add(kee)
    # Which revision it is; then what it says, and the note of its reader.
    made, again = 3, 1
    assert [statements(kee), statements(kee)] == [made, again]
    assert [statements(lee), statements(lee)] == [made, again]
    with acting_as(kee):
        remember(kee)
    assert [statements(kee), statements(kee)] == [made, again]
    assert statements(kee, skip_cache=True) == made - 1
    with acting_as(kee):
        assert EnvelopeLoaded.objects.count() == 4


def test_who_takes_the_name_of_another_is_given_an_envelope_of_its_own(kee: Caller) -> None:
    lee = other(kee)
    with acting_as(kee):
        add(kee)
        remember(kee)
        remember(kee, "Has moved", now=T0)
    with acting_as(lee):
        envelope(lee)
    with acting_as_system("test"):
        rename_principal(principal_id=lee.principal_id, name="Max")
    new = other(kee)
    assert (new.name, new.principal_id != lee.principal_id) == ("Lee", True)

    with acting_as(new):
        assert facts(new) == ["Has moved", "Loves fettuccini"]
    with acting_as(kee):
        assert list(EnvelopeLoaded.objects.order_by("pk").values_list("viewer_id", flat=True)) == [
            lee.principal_id, new.principal_id,
        ]  # fmt: skip
        change(kee, share_with=["Lee"])
    with acting_as(new):
        envelope(new)
    renamed = replace(lee, name="Max")
    with acting_as(renamed), pytest.raises(UnknownSubject):
        envelope(renamed)


def test_every_kind_of_write_is_seen_at_once(kee: Caller) -> None:
    with acting_as(kee):
        add(kee)

    def shown() -> str:
        with acting_as(kee):
            return envelope(kee).model_dump_json(exclude={"metadata"})

    seen = [shown()]
    for write in (
        lambda: remember(kee, slot="food"),
        lambda: remember(kee, "Hates fettuccini", slot="food"),
        lambda: change(kee, display_name="Alice"),
        lambda: change(kee, preferences={"a": "b"}),
        lambda: services.record_session(principal=kee, conversation_id="c", subject_id=ALICE, now=T0),
        lambda: services.record_session(principal=kee, conversation_id="c", summary="s", now=T0),
        lambda: services.set_memory_policy(author=kee, share_with=["Kee"], now=T0),
        lambda: change(kee, anonymize_dates=True),
        lambda: change(kee, memory_enabled=False),
    ):
        with acting_as(kee):
            write()
        seen.append(shown())
    assert len(set(seen)) == len(seen)


def test_each_change_of_the_tenants_policy_reaches_the_next_envelope(kee: Caller) -> None:
    with acting_as(kee):
        add(kee)
        remember(kee)
    for days, shown in ((4, ["Loves fettuccini"]), (2, []), (5, ["Loves fettuccini"])):
        with acting_as(kee):
            services.set_memory_policy(author=kee, fact_days=days, now=T0)
        with acting_as(kee):
            assert facts(kee, now=T0 + 3 * DAY) == shown


def test_who_is_no_longer_shared_with_reads_nothing_out_of_the_cache(kee: Caller) -> None:
    lee = other(kee)
    with acting_as(kee):
        add(kee)
    with acting_as(lee):
        envelope(lee)
    with acting_as(kee):
        change(kee, share_with=["Kee"])
    with acting_as(lee), pytest.raises(UnknownSubject):
        envelope(lee)


@pytest.mark.parametrize("is_read_between", [False, True])
def test_what_is_undone_is_never_shown(kee: Caller, is_read_between: bool) -> None:
    with acting_as(kee):
        add(kee)
    with acting_as(kee):
        remember(kee, "Undone")
        assert facts(kee) == ["Undone"]
        transaction.set_rollback(True)
    if is_read_between:
        with acting_as(kee):
            assert facts(kee) == []
    with acting_as(kee):
        # The revision that the undone one would have had.
        remember(kee, "Done")
    with acting_as(kee):
        assert facts(kee) == ["Done"]


def test_several_envelopes_are_made_once_each_and_anew_for_who_asks_for_that(kee: Caller) -> None:
    with acting_as(kee):
        add(kee)
        add(kee, "USER:bob")

    def asked(**given: bool) -> tuple[list[str], int]:
        several = OfSubjects(subject_ids=["USER:bob", ALICE, "USER:bob"], **given)
        with acting_as(kee), CaptureQueriesContext(connection) as captured:
            answer = get_memory_envelopes(kee, several)
        return [one.identity.subject_id for one in answer.envelopes], len(captured)

    order = ["USER:bob", ALICE]
    # For each which revision it is, what it says, and the note of its reader; or the first; or the other two.
    assert [asked(), asked(), asked(skip_cache=True)] == [(order, 6), (order, 2), (order, 4)]


def test_a_subject_that_was_forgotten_and_added_again_is_another(kee: Caller) -> None:
    with acting_as(kee):
        add(kee, display_name="First")
    with acting_as(kee):
        envelope(kee)
        services.forget(author=kee, subject_id=ALICE, now=T0)
    with acting_as(kee):
        services.add_subject(author=kee, subject_id=ALICE, change=SubjectChange(given={}), remember_again=True, now=T0)
    with acting_as(kee):
        assert envelope(kee).identity.display_name is None


@pytest.mark.parametrize("where", ["item", "session"])
def test_what_goes_from_one_subject_with_another_goes_from_its_envelope_too(kee: Caller, where: str) -> None:
    with acting_as(kee):
        add(kee)
        add(kee, "USER:bob")
        if where == "item":
            remember(kee, f"Knows {ALICE}", "USER:bob")
        else:
            services.record_session(
                principal=kee, conversation_id="c", subject_id="USER:bob", summary=f"Of {ALICE}", now=T0
            )

    def shown() -> str:
        with acting_as(kee):
            return envelope(kee, "USER:bob").model_dump_json()

    assert ALICE in shown()
    with acting_as(kee):
        before = Subject.objects.get(key="USER:bob").rev
        services.forget(author=kee, subject_id=ALICE, now=T0)
    assert ALICE not in shown()
    # Other processes go by the revision.
    with acting_as(kee):
        assert Subject.objects.get(key="USER:bob").rev > before


def test_an_envelope_that_another_thread_has_made_before_its_subject_was_forgotten_is_not_kept(kee: Caller) -> None:
    with acting_as(kee):
        add(kee)
    with acting_as(kee):
        services.forget(author=kee, subject_id=ALICE, now=T0)
        keep(cache.envelopes, Key(kee.tenant_id, ALICE, -1, "1.0"))
    assert cache.envelopes.count(kee.tenant_id, lambda _: True) == 0


def test_an_envelope_that_is_made_while_its_subject_is_forgotten_is_given_to_nobody(kee: Caller) -> None:
    with acting_as(kee):
        add(kee)
    told: list[object] = []

    def read() -> None:
        try:
            with acting_as(kee):
                told.append(envelope(kee))
        except UnknownSubject as exc:
            told.append(type(exc))
        finally:
            connection.close()

    reader = threading.Thread(target=read)
    with acting_as(kee):
        services.forget(author=kee, subject_id=ALICE, now=T0)
        reader.start()
        wait_for_a_lock()
    reader.join(timeout=20)
    assert told == [UnknownSubject]
    with acting_as_system("test"):
        assert not EnvelopeLoaded.objects.exists()


def wait_for_a_lock() -> None:
    """Until somebody waits for a row that this transaction holds."""
    for _ in range(2_000):
        with connection.cursor() as cursor:
            cursor.execute("select exists (select from pg_locks where not granted), pg_sleep(0.01)")
            if cursor.fetchone()[0]:
                return
    raise AssertionError("nobody waits")


@pytest.mark.parametrize("lasting", [{}, {"valid_to": T0 + timedelta(minutes=5)}])
def test_what_ends_by_itself_ends_in_the_cache_too(kee: Caller, lasting: dict[str, Any]) -> None:
    end = lasting.get("valid_to", T0 + 31 * DAY)
    with acting_as(kee):
        add(kee)
        remember(kee, **lasting)
    for moment, shown in ((end - timedelta(minutes=1), 1), (end - TICK, 1), (end, 0), (end + TICK, 0)):
        with acting_as(kee):
            assert len(facts(kee, now=moment)) == shown


def test_what_is_to_be_so_comes_out_of_the_cache_when_it_is(kee: Caller) -> None:
    begin = T0 + timedelta(minutes=5)
    with acting_as(kee):
        add(kee)
        remember(kee, valid_from=begin)
    for moment, shown in ((T0, 0), (begin - TICK, 0), (begin, 1)):
        with acting_as(kee):
            assert len(facts(kee, now=moment)) == shown


def test_the_last_conversation_goes_out_of_the_cache_when_it_has_had_its_days(kee: Caller) -> None:
    with acting_as(kee):
        add(kee, delete_after_days=2)
        services.record_session(principal=kee, conversation_id="c", subject_id=ALICE, now=T0)
    end, found = T0 + 2 * DAY, []
    for moment in (end - timedelta(minutes=1), end - TICK, end):
        with acting_as(kee):
            found.append(envelope(kee, now=moment).recent_context.session_id)
    assert found == ["c", "c", None]


def test_an_age_in_the_cache_grows(kee: Caller) -> None:
    with acting_as(kee):
        add(kee)
        remember(kee)
    ages = []
    for moment in (T0 + DAY - timedelta(minutes=1), T0 + DAY - TICK, T0 + DAY):
        with acting_as(kee):
            ages.append(envelope(kee, now=moment).relational.memorable_facts[0].age_days)
    assert ages == [0, 0, 1]


def test_no_envelope_is_kept_longer_than_it_says(kee: Caller) -> None:
    with acting_as(kee):
        add(kee)
    made = []
    for moment in (T0, T0 + envelopes.CACHE_TTL - TICK, T0 + envelopes.CACHE_TTL):
        with acting_as(kee):
            made.append(envelope(kee, now=moment).metadata.created_at)
    assert made == ["2026-01-03T20:15:00Z", "2026-01-03T20:15:00Z", "2026-01-03T20:30:00Z"]


# The cache by itself.

KEY = Key(1, ALICE, 7, "1.0")
STAMP = Stamp(1, 1, 0)


def keep(kept: Envelopes, key: Key = KEY, text: str = "{}") -> None:
    kept.put(key, STAMP, text, made_at=T0, until=T0 + DAY)


@pytest.mark.parametrize(
    ("key", "stamp"),
    [
        (KEY._replace(tenant_id=2), STAMP),
        (KEY._replace(subject_id="USER:bob"), STAMP),
        (KEY._replace(viewer_id=8), STAMP),
        (KEY._replace(variant="2.0"), STAMP),
        (KEY, STAMP._replace(subject_pk=2)),
        (KEY, STAMP._replace(rev=2)),
        (KEY, STAMP._replace(policy_rev=1)),
    ],
)
def test_an_envelope_is_found_by_all_that_it_was_made_for_and_of(key: Key, stamp: Stamp) -> None:
    kept = Envelopes()
    keep(kept)
    assert kept.get(KEY, STAMP, now=T0) == "{}"
    assert kept.get(key, stamp, now=T0) is None


def test_who_asks_of_a_moment_before_an_envelope_was_made_is_not_given_it_and_it_stays() -> None:
    kept = Envelopes()
    keep(kept)
    assert [kept.get(KEY, STAMP, now=moment) for moment in (T0 - TICK, T0)] == [None, "{}"]


def test_the_oldest_go_when_there_are_many() -> None:
    kept = Envelopes()
    large = "x" * (9 * 1024 * 1024)
    for number in range(4):
        keep(kept, KEY._replace(tenant_id=number), large)
    found = [kept.get(KEY._replace(tenant_id=number), STAMP, now=T0) is not None for number in range(4)]
    assert found == [False, True, True, True]


def test_an_envelope_takes_the_room_that_it_takes_in_memory() -> None:
    """One wide sign makes each sign of a text take four bytes."""
    kept = Envelopes()
    for number in range(2):
        keep(kept, KEY._replace(tenant_id=number), "x" * (5 * 1024 * 1024) + "\U0001f35d")
    assert [kept.count(number, lambda _: True) for number in range(2)] == [0, 1]


def test_nobody_waits_while_envelopes_are_looked_through() -> None:
    kept, begun, served = Envelopes(), threading.Barrier(2), threading.Barrier(2)
    keep(kept, text="canary")
    told: list[str | None] = []

    def holds(text: str) -> bool:
        begun.wait(timeout=20)
        served.wait(timeout=20)
        return "canary" in text

    def read() -> None:
        begun.wait(timeout=20)
        told.append(kept.get(KEY, STAMP, now=T0))
        served.wait(timeout=20)

    reader = threading.Thread(target=read)
    reader.start()
    assert kept.drop(1, holds) == 1
    reader.join(timeout=20)
    assert (told, kept.get(KEY, STAMP, now=T0)) == (["canary"], None)


@pytest.mark.parametrize("again", ["canary", "{}"])
def test_what_has_come_while_envelopes_were_looked_through_is_looked_at_too(again: str) -> None:
    kept = Envelopes()
    keep(kept, text="canary")
    others = [KEY, KEY._replace(viewer_id=9), KEY._replace(subject_id="USER:bob")]

    def holds(text: str) -> bool:
        while others:
            keep(kept, others.pop(), again)
        return "canary" in text

    is_gone = again == "canary"
    assert kept.drop(1, holds) == (3 if is_gone else 0)
    assert kept.count(1, lambda _: True) == (0 if is_gone else 3)


def test_there_is_an_end_to_looking_though_there_is_none_to_what_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_ROUNDS", 3)
    kept = Envelopes()
    looked: list[str] = []

    def holds(text: str) -> bool:
        looked.append(text)
        if len(looked) <= 3:
            keep(kept, KEY._replace(viewer_id=len(looked)), f"canary {len(looked)}")
        return "canary" in text

    keep(kept, KEY._replace(viewer_id=99), "canary")
    assert kept.drop(1, holds) == 4
    assert looked == ["canary", "canary 1", "canary 2", "canary 3"]
    assert kept.count(1, lambda _: True) == 0


def test_of_what_rivals_put_none_that_holds_it_is_left_and_none_that_does_not_is_gone() -> None:
    kept, begun = Envelopes(), threading.Barrier(5)
    is_changed, is_over = threading.Event(), threading.Event()
    puts = [0] * 4

    def run(rival: int) -> None:
        begun.wait(timeout=20)
        while not is_over.is_set():
            # What is read after the change says nothing of it any more; until then, every other does.
            is_told = not is_changed.is_set() and puts[rival] % 2 == 0
            keep(kept, KEY._replace(viewer_id=puts[rival] % 97, variant=str(rival)), "canary" if is_told else "{}")
            puts[rival] += 1

    def until_each_has_put(times: int) -> None:
        wanted = [number + times for number in puts]
        while any(number < most for number, most in zip(puts, wanted, strict=True)):
            time.sleep(0.001)

    rivals = [threading.Thread(target=run, args=[rival], daemon=True) for rival in range(4)]
    for rival in rivals:
        rival.start()
    begun.wait(timeout=20)
    until_each_has_put(300)
    is_changed.set()
    # What was read before the change is put.
    until_each_has_put(2)
    kept.drop(1, lambda text: "canary" in text)
    found = kept.count(1, lambda text: "canary" in text)
    until_each_has_put(100)
    is_over.set()
    for rival in rivals:
        rival.join(timeout=20)
    assert (found, kept.count(1, lambda text: text == "{}")) == (0, 4 * 97)


def test_what_nobody_asks_for_again_goes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_LASTS", 0.05)
    kept = Envelopes()
    keep(kept)
    gone = threading.Event()
    for _ in range(100):
        if not kept.count(1, lambda _: True):
            break
        gone.wait(0.05)
    assert kept.count(1, lambda _: True) == 0


# Two processes.


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a process is to do next."""

    what: str
    now: datetime
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What an envelope showed: a name, and the fact of it."""

    name: str | None = None
    facts: tuple[str | None, ...] = ()


class Process:
    """What this process does, one step after the other, of which several may be of one transaction."""

    def __init__(self, kee: Caller) -> None:
        self._kee = kee
        self._open = ExitStack()

    def take(self, step: Step) -> tuple[Shown, int] | None:
        """Take a step; of one that reads, what it was shown, by how many statements."""
        match step.what:
            case "begin":
                self._open.enter_context(acting_as(self._kee))
            case "undo":
                transaction.set_rollback(True)
                self._open.close()
            case "end":
                self._open.close()
            case "remember":
                remember(self._kee, step.text, slot="s", now=step.now, valid_from=T0)
            case "rename":
                change(self._kee, display_name=step.text, now=step.now)
            case _:
                return self._read(step.now)
        return None

    def close(self) -> None:
        self._open.close()

    def _read(self, now: datetime) -> tuple[Shown, int]:
        begun = nullcontext() if connection.in_atomic_block else acting_as(self._kee)
        with begun, CaptureQueriesContext(connection) as captured:
            found = envelope(self._kee, now=now)
        facts = tuple(fact.fact for fact in found.relational.memorable_facts)
        return Shown(name=found.identity.display_name, facts=facts), len(captured)


def _other_process(ends: Connection, kee: Caller) -> None:
    """Takes the steps that it is told to, until it is told of none."""
    connections.close_all()
    process = Process(kee)
    while (told := ends.recv()) is not None:
        ends.send(process.take(told))
    connections.close_all()


class Interleaving:
    """Two processes whose transactions are open at the same time, and what has been committed meanwhile.

    The first is this one, between any two statements of which the other may take a step. One of them writes at a time:
    who came second would wait.
    """

    def __init__(self, seed: int, *take: Callable[[Step], tuple[Shown, int] | None]) -> None:
        self._chance = random.Random(seed)  # noqa: S311  # no secret
        self._take = take
        self._is_reading = False
        """Whether the first reads just now, outside any transaction or within one."""
        self._begun: dict[int, int] = {}
        """Of whose transaction is open: how much had been committed when it began."""
        self._pending: dict[int, Shown] = {}
        self._committed = [Shown()]
        self._writers = [0]
        """Who committed each of these."""
        self._steps = 0
        self.seen: Counter[str | tuple[str, int]] = Counter()

    def step(self, who: int) -> None:
        """Let one of them do anything that it can without waiting."""
        writes = [] if self._pending.keys() - {who} else ["remember", "rename"]
        if who in self._begun:
            can = ["read", "end", *["undo"] * (who in self._pending), *writes]
        else:
            # Whole transactions where the other has begun something, which they can come between.
            is_between = self._is_reading or self._begun.keys() - {who}
            can = ["read", "begin", *(f"{what} alone" for what in writes * 2 if is_between)]
        what, _, alone = self._chance.choice(can).partition(" ")
        if what == "read":
            self._read(who)
            return
        for one in ("begin", what, "end") if alone else (what,):
            self._do(who, one)

    def _next(self, what: str) -> Step:
        self._steps += 1
        return Step(what=what, now=T0 + timedelta(milliseconds=self._steps), text=f"{what} {self._steps}")

    def _do(self, who: int, what: str) -> None:
        step = self._next(what)
        self._take[who](step)
        self.seen[what] += 1
        match what:
            case "begin":
                self._begun[who] = len(self._committed)
            case "remember":
                self._pending[who] = replace(self._known(who), facts=(step.text,))
            case "rename":
                self._pending[who] = replace(self._known(who), name=step.text)
            case _:
                del self._begun[who]
                written = self._pending.pop(who, None)
                if what == "end" and written is not None:
                    self._committed.append(written)
                    self._writers.append(who)

    def _known(self, who: int) -> Shown:
        return self._pending.get(who, self._committed[-1])

    def _read(self, who: int) -> None:
        step, least = self._next("read"), len(self._committed) - 1
        begun = self._begun.get(who, least + 1)
        self.seen["beside a writer"] += bool(self._pending.keys() - {who})
        if who == 0:
            self._is_reading = True
            with connection.execute_wrapper(self._interrupt):
                answer = self._take[who](step)
            self._is_reading = False
        else:
            answer = self._take[who](step)
        assert answer is not None
        shown, statements = answer
        assert shown in ([self._pending[who]] if who in self._pending else self._committed[least:])
        # The other has committed since this one's transaction began, or even while it read.
        self.seen["interleaved", who] += 1 - who in self._writers[begun:]
        self.seen["overtaken"] += len(self._committed) > least + 1
        self.seen["out of the cache"] += statements == 1

    @property
    def judged(self) -> int:
        """How many readers had the other commit between their beginning and their end, in either process."""
        return self.seen["interleaved", 0] + self.seen["interleaved", 1]

    def _interrupt(self, execute: Callable[..., Any], *given: Any) -> Any:
        while self._chance.random() < 0.6:
            self.step(1)
        return execute(*given)


SEEDS = 4
INTERLEAVINGS = 1_000


@pytest.mark.ci
@pytest.mark.parametrize("seed", range(SEEDS))
def test_in_a_thousand_interleavings_of_two_processes_no_read_is_stale(kee: Caller, seed: int) -> None:
    with acting_as(kee):
        add(kee)
    connections.close_all()
    ours, theirs = multiprocessing.Pipe()
    other_one = multiprocessing.get_context("fork").Process(target=_other_process, args=(theirs, kee), daemon=True)
    other_one.start()
    theirs.close()

    def take_there(step: Step) -> tuple[Shown, int] | None:
        ours.send(step)
        answer: tuple[Shown, int] | None = ours.recv()
        return answer

    here = Process(kee)
    interleaving = Interleaving(seed, here.take, take_there)
    try:
        turn = 0
        while interleaving.judged < INTERLEAVINGS // SEEDS:
            interleaving.step(turn % 2)
            turn += 1
    finally:
        here.close()
        ours.send(None)
        other_one.join(timeout=10)
        other_one.kill()
    seen = interleaving.seen
    least = {"beside a writer": 20, "overtaken": 50, "out of the cache": 20, "undo": 5, "remember": 10, "rename": 10}
    assert {name: number for name, number in least.items() if seen[name] < number} == {}
    assert min(seen["interleaved", who] for who in (0, 1)) >= 20


def test_a_writer_and_readers_at_the_same_time_never_see_an_older_fact_after_a_newer(kee: Caller) -> None:
    with acting_as(kee):
        add(kee)
        remember(kee, "fact 0", slot="s", valid_from=T0)
    written, stop, read = [0], threading.Event(), list[tuple[int, int]]()

    def go_on_reading() -> None:
        try:
            while not stop.is_set():
                least = written[0]
                with acting_as(kee):
                    (found,) = facts(kee, now=T0 + DAY)
                read.append((least, int(found.split()[1])))
        finally:
            connection.close()

    readers = [threading.Thread(target=go_on_reading) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(1, 1_000):
        with acting_as(kee):
            remember(kee, f"fact {number}", slot="s", valid_from=T0, now=T0 + timedelta(seconds=number))
        written[0] = number
        if number >= 60 and len(read) >= 100:
            break
    stop.set()
    for reader in readers:
        reader.join(timeout=30)
    assert [(least, found) for least, found in read if found < least] == []
    assert (len(read) >= 100, len({found for _, found in read}) >= 10) == (True, True)
