"""What stands around a memory helps to find it: turns next to it, its session, who spoke and when; names and forms."""

import threading
from datetime import datetime, timedelta

import pytest
from django.db import IntegrityError, connection, transaction

from apps.core.ticks import run
from apps.memory import search, services
from apps.memory.models import MOST_TURNS, Memory, Session, TermFrequency
from apps.memory.selectors import recall
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as
from tests.factories import T0, make_caller, make_tenant
from tests.memory.subjects import observations, refused
from tests.memory.test_store import observe
from tests.waiters import Other, until_somebody_waits_for_this_transaction

FILLER = ("Nice weather.", "Lunch was fine.", "See you later.", "Nothing new here.", "All quiet.")


def say(author: Caller, conversation: str, *lines: str, at: datetime | None = None, speaker: str = "") -> None:
    for line in lines:
        services.store_observation(
            author=author, text=line, conversation_id=conversation, speaker=speaker, occurred_at=at, now=T0
        )


def texts(caller: Caller, query: str, limit: int = 10) -> list[str]:
    return [hit.text for hit in recall(query, caller=caller, limit=limit)]


def test_an_answer_is_found_by_the_question_before_it_and_says_so(as_kee: Caller) -> None:
    for number in range(5):
        say(as_kee, f"c-{number}", *FILLER)
    say(as_kee, "c", "Hello!", "Which oven did the baker choose?", "The blue one, with six doors.", *FILLER)
    question, answer, *_ = recall("oven of the baker", caller=as_kee)
    assert (question.text, answer.text) == ("Which oven did the baker choose?", "The blue one, with six doors.")
    assert question.why == "has baker, oven"
    assert answer.why == "what was said around it is about this"


def test_a_turn_is_found_by_what_was_said_two_turns_away_and_no_farther(as_kee: Caller) -> None:
    say(as_kee, "c", "-3", "-2", "-1", "Which oven did the baker choose?", "+1", "+2", "+3")
    assert texts(as_kee, "oven of the baker") == ["Which oven did the baker choose?", "+1", "-1", "+2", "-2"]


def test_what_is_next_in_time_and_in_another_conversation_is_not_next_to_it(as_kee: Caller) -> None:
    say(as_kee, "one", "Which oven did the baker choose?")
    say(as_kee, "two", "The blue one.")
    observe(as_kee, "Said to nobody.")
    observe(as_kee, "An oven is hot.")
    observe(as_kee, "Said to nobody either.")
    assert sorted(texts(as_kee, "oven")) == ["An oven is hot.", "Which oven did the baker choose?"]


def test_conversations_of_two_agents_with_the_same_id_are_two(as_kee: Caller, tenant: Tenant) -> None:
    hexy = make_caller(tenant, "Hexy")
    say(as_kee, "c", "Which oven did the baker choose?")
    say(hexy, "c", "The blue one.")
    assert Session.objects.filter(conversation_id="c").count() == 2
    assert texts(as_kee, "oven") == ["Which oven did the baker choose?"]


def test_a_session_about_it_goes_before_a_word_by_the_way(as_kee: Caller) -> None:
    say(as_kee, "way", *FILLER, "My marathon is long over.", *FILLER)
    say(as_kee, "race", "A marathon it is.", *FILLER, "That marathon again.", *FILLER, "Marathon once more, it seems.")
    assert texts(as_kee, "marathon", 3)[-1] != "My marathon is long over."
    assert texts(as_kee, "marathon")[3] == "My marathon is long over."


def test_a_session_about_it_tells_more_than_a_word_less(as_kee: Caller) -> None:
    long = "Rain fell, trains stopped, nobody minded much, music played, lunch came late."
    say(as_kee, "race", *["Marathon today, Luca.", long, long, long] * 4)
    say(as_kee, "way", long, long, long, "Marathon today.", long, long, long)
    assert texts(as_kee, "marathon", 5) == [*["Marathon today, Luca."] * 4, "Marathon today."]


def test_who_spoke_and_when_count_but_do_not_rub_off_on_the_turns_beside(as_kee: Caller) -> None:
    march, may = datetime(2024, 3, 5, tzinfo=T0.tzinfo), datetime(2024, 5, 5, tzinfo=T0.tzinfo)
    for number, at in enumerate((march, may)):
        say(as_kee, f"c-{number}", "I bought shoes.", at=at, speaker="Priya")
        say(as_kee, f"c-{number}", "I bought shoes too.", at=at, speaker="Luca")
    best = recall("What shoes did Luca buy in May?", caller=as_kee)[0]
    assert (best.text, best.speaker, best.conversation_id, best.occurred_at) == (
        "I bought shoes too.",
        "Luca",
        "c-1",
        may,
    )
    assert best.why == (
        "has bought (buy), shoe; luca, may is who said it, or when; what was said around it is about this"
    )
    assert texts(as_kee, "Luca") == ["I bought shoes too."] * 2


def test_a_memory_without_a_time_of_its_own_is_not_found_by_the_day_it_was_stored(as_kee: Caller) -> None:
    observe(as_kee, "The port is 443.")
    assert texts(as_kee, f"{T0:%B %Y}") == []


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ("Who wrote the song?", "She writes songs."),
        ("What did he teach the child?", "He taught children."),
        ("Where were the keys found?", "I can't find my keys."),
        ("What was bought?", "They buy honey."),
    ],
)
def test_irregular_forms_of_a_word_are_the_same_word(as_kee: Caller, asked: str, text: str) -> None:
    observe(as_kee, text)
    (hit,) = recall(asked, caller=as_kee)
    assert hit.text == text


def test_a_question_by_one_name_finds_what_was_said_by_another(as_kee: Caller) -> None:
    services.store_concept(author=as_kee, name="PostgreSQL", aliases=["elephant db"], now=T0)
    services.store_concept(author=as_kee, name="New York City", aliases=["NYC", "the Big Apple"], now=T0)
    for number in range(10):
        observe(as_kee, f"A new thing, number {number}.")
    observe(as_kee, "PostgreSQL runs on port 5432.")
    observe(as_kee, "The office in New York City has moved.")
    found = recall("Which port has the Elephant DB's server?", caller=as_kee)
    assert found[0].text == "PostgreSQL runs on port 5432."
    assert "postgresql (db), postgresql (eleph)" in found[0].why
    assert texts(as_kee, "our office in NYC?")[0] == "The office in New York City has moved."


def test_a_word_of_a_longer_name_says_less_than_the_name_that_was_asked_by(as_kee: Caller) -> None:
    services.store_concept(author=as_kee, name="NYC", aliases=["the Big Apple"], now=T0)
    observe(as_kee, "NYC is loud.")
    observe(as_kee, "An apple is loud.")
    assert texts(as_kee, "NYC") == ["NYC", "NYC is loud.", "An apple is loud."]


def test_words_together_go_before_the_same_words_apart(as_kee: Caller) -> None:
    observe(as_kee, "The machine that is learning.")
    observe(as_kee, "This is a learning machine.")
    observe(as_kee, "It does machine learning.")
    observe(as_kee, "A machine kept us learning.")
    best = recall("machine learning", caller=as_kee)[0]
    assert best.text == "It does machine learning."
    assert best.why == "has learn, machin; has words together as the question does"


def test_a_question_is_cut_to_its_six_rarest_words(as_kee: Caller) -> None:
    for _ in range(3):
        observe(as_kee, "apple banana cherry damson elder fig")
    observe(as_kee, "grape")
    for _ in range(4):
        observe(as_kee, "common")
    assert "common" not in texts(as_kee, "common apple banana cherry damson elder grape", limit=50)
    assert texts(as_kee, "common apple banana")[-1] == "common"


def test_recall_writes_nothing(as_kee: Caller) -> None:
    say(as_kee, "c", "Which oven?", "The blue one.")
    with connection.cursor() as cursor:
        cursor.execute("set local transaction_read_only = on")
        assert len(recall("oven", caller=as_kee)) == 2
        assert len(recall("", caller=as_kee)) == 2


def test_a_conversation_is_known_from_its_first_turn_on_and_by_its_own_time(as_kee: Caller) -> None:
    at = datetime(2020, 1, 1, tzinfo=T0.tzinfo)
    say(as_kee, "c", "Hello.", at=at + timedelta(hours=1))
    say(as_kee, "c", "Earlier.", at=at)
    session = Session.objects.get()
    assert (session.turns, session.started_at, session.last_active_at) == (2, at, at + timedelta(hours=1))
    services.record_session(principal=as_kee, conversation_id="c", title="A talk", now=T0)
    assert Session.objects.get().turns == 2


def test_a_conversation_is_no_younger_than_what_was_last_stored_of_it(as_kee: Caller) -> None:
    say(as_kee, "c", "From a clock that is ahead.", at=datetime(9999, 12, 29, tzinfo=T0.tzinfo))
    session = Session.objects.get()
    assert (session.started_at, session.last_active_at) == (T0, T0)


def test_a_conversation_that_is_full_takes_no_turn_and_nothing_is_stored(as_kee: Caller) -> None:
    say(as_kee, "c", "Hello.")
    Session.objects.update(turns=MOST_TURNS)
    with refused("conversation_full"):
        say(as_kee, "c", "One too many.")
    assert observations().count() == 1
    with pytest.raises(IntegrityError, match="memory_session_turns_have_places"), transaction.atomic():
        Session.objects.update(turns=MOST_TURNS + 1)


def test_turns_that_come_at_once_each_have_a_place(transactional_db: None) -> None:
    kee = make_caller(make_tenant("acme"))
    barrier = threading.Barrier(6)

    def speak(number: int) -> None:
        try:
            barrier.wait(timeout=20)
            with acting_as(kee):
                say(kee, "c", f"walrus {number}")
        finally:
            connection.close()

    threads = [threading.Thread(target=speak, args=[number]) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    with acting_as(kee):
        assert len(texts(kee, "walrus")) == 6
        assert Session.objects.get().turns == 6


def test_places_go_by_when_a_note_or_a_conversation_began(as_kee: Caller) -> None:
    observe(as_kee, "note 1")
    say(as_kee, "one", "turn 2", "turn 3")
    observe(as_kee, "note 5")
    services.record_session(principal=as_kee, conversation_id="two", now=T0)
    observe(as_kee, "note 7")
    say(as_kee, "two", "turn 6")
    say(as_kee, "one", "turn 4")
    by_place = Memory.objects.order_by("place").values_list("text", flat=True)
    assert [text.split()[1] for text in by_place] == list("1234567")


def _who_speaks_meanwhile(kee: Caller) -> Other:
    """Who says something in a conversation that this transaction begins, and waits for it."""

    def speak() -> None:
        with acting_as(kee):
            say(kee, "c", "The other.")

    say(kee, "c", "The one.")
    other = Other(speak)
    until_somebody_waits_for_this_transaction()
    return other


def test_who_begins_a_conversation_that_another_is_beginning_takes_the_turn_after_its(transactional_db: None) -> None:
    kee = make_caller(make_tenant("acme"))
    with acting_as(kee):
        other = _who_speaks_meanwhile(kee)
        observe(kee, "A note.")
    assert other.ends() is None
    with acting_as(kee):
        session = Session.objects.get()
        places = dict(Memory.objects.values_list("text", "place"))
        assert (places["The one."], places["The other."]) == (session.place_of(0), session.place_of(1))
        assert places["The other."] < places["A note."]


def test_a_conversation_whose_beginning_is_undone_begins_with_who_waited(transactional_db: None) -> None:
    kee = make_caller(make_tenant("acme"))
    with acting_as(kee):
        other = _who_speaks_meanwhile(kee)
        transaction.set_rollback(True)
    assert other.ends() is None
    with acting_as(kee):
        message = Memory.objects.get()
        assert (message.place, Session.objects.get().turns) == (Session.objects.get().place_of(0), 1)


def test_what_is_too_common_to_be_counted_at_each_question_is_counted_by_a_tick(
    transactional_db: None,
) -> None:
    kee, stranger = make_caller(make_tenant("acme")), make_caller(make_tenant("globex"))
    for caller, times in ((kee, 5), (stranger, 2)):
        with acting_as(caller):
            for number in range(times):
                observe(caller, f"walrus {number}")
    run("memory.fold_totals")
    run("memory.count_frequencies")
    assert search.count_frequencies(common=3) == 1
    with acting_as(kee):
        assert dict(TermFrequency.objects.values_list("term", "memories")) == {"": 5, "walrus": 5}
        TermFrequency.objects.filter(term="walrus").update(memories=4)
    assert search.count_frequencies(common=3) == 0
    with acting_as(kee):
        observe(kee, "walrus and more")
    assert search.count_frequencies(common=3) == 1
    with acting_as(kee):
        assert dict(TermFrequency.objects.values_list("term", "memories")) == {"": 6, "walrus": 6}
    with acting_as(stranger):
        assert not TermFrequency.objects.exists()
