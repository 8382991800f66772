"""Of whatever else holds the words of an item, they are taken when that is forgotten."""

import json

import pytest

from apps.digests.models import Entry
from apps.memory import services
from apps.memory.models import Observation, Subject
from apps.principals.tenancy import Caller, acting_as
from tests.digests.makers import post_grouped
from tests.factories import T0, make_caller, make_tenant
from tests.memory.subjects import ALICE, add, envelope, remember
from tests.memory.test_forgetting import traces

pytestmark = pytest.mark.usefixtures("own_artifacts")
BOB = "USER:bob"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Nina", "The login is CORP\\nina"),
        ("Anna", "The login is CORP\\anna"),
        ("Café crème, always", json.dumps("CAFÉ CRÈME, ALWAYS")),
        ("\u01f0 stands for a sound", "\u01f0 stands for a sound".upper()),
        ("ビーガンです。卵も食べません。", "ビーガンです。卵も食べません"),
        ("क्या आप शाकाहारी हैं।", "क्या आप शाकाहारी हैं"),
    ],
    ids=["a backslash", "another", "escaped capitals", "a capital of two signs", "a full stop", "a danda"],
)
def test_the_words_of_an_item_are_found_however_they_are_written(as_kee: Caller, text: str, said: str) -> None:
    add(as_kee)
    item = remember(as_kee, text).item
    services.record_session(principal=as_kee, conversation_id="c", subject_id=ALICE, now=T0)
    services.store_observation(author=as_kee, text=said, conversation_id="c", now=T0)
    services.forget(author=as_kee, subject_id=ALICE, item=item.pk, now=T0)
    assert Observation.objects.get().text == ""


def test_what_its_subject_prefers_goes_with_an_item_entry_by_entry(as_kee: Caller) -> None:
    add(
        as_kee,
        display_name="A zebra at home",
        learning_level="has a zebra at home",
        domains=["Zebra at home", "of bread"],
        preferences={"pet": "Has a zebra at home!", "ZEBRA AT HOME": "yes", "tone": "short"},
    )
    item = remember(as_kee, "zebra at home").item
    before = Subject.objects.get().rev

    done = services.forget(author=as_kee, subject_id=ALICE, item=item.pk, now=T0)

    alice = Subject.objects.get()
    assert (alice.learning_level, alice.domains, alice.preferences) == ("", ["of bread"], {"tone": "short"})
    assert (alice.display_name, done.remaining) == ("A zebra at home", {"memory_subject": 1})
    assert (alice.rev > before, done.erased["memory_subject"]) == (True, 1)
    assert "zebra at home" not in str(envelope(as_kee).relational.preferences).lower()


def test_of_what_others_prefer_goes_what_names_a_forgotten_subject(as_kee: Caller) -> None:
    add(as_kee)
    told = {"friend": f"{ALICE}, who has a zebra", ALICE: "bread", "other": f"{ALICE}.b", "pet": "Zebra"}
    add(as_kee, BOB, preferences=told, domains=[f"zebras of {ALICE}", "bread"])
    before = Subject.objects.get(key=BOB).rev
    assert "zebras" in str(envelope(as_kee, BOB))

    done = services.forget(author=as_kee, subject_id=ALICE, now=T0)

    bob = Subject.objects.get()
    assert (bob.domains, bob.preferences) == (["bread"], {"other": f"{ALICE}.b", "pet": "Zebra"})
    assert (bob.rev > before, done.erased["memory_subject"], done.remaining) == (True, 2, {})
    assert "zebras" not in str(envelope(as_kee, BOB))


def test_of_what_others_prefer_goes_what_says_an_item_of_whom_it_names(as_kee: Caller) -> None:
    add(as_kee)
    item = remember(as_kee, "Has a zebra at home").item
    add(
        as_kee, BOB, preferences={"friend": f"{ALICE} has a zebra at home", "ally": ALICE, "pet": "has a zebra at home"}
    )
    done = services.forget(author=as_kee, subject_id=ALICE, item=item.pk, now=T0)
    assert Subject.objects.get(key=BOB).preferences == {"ally": ALICE, "pet": "has a zebra at home"}
    assert done.remaining == {}


def test_a_subject_that_is_called_by_a_forgotten_id_stays_and_is_counted(as_kee: Caller) -> None:
    add(as_kee)
    add(as_kee, BOB, display_name=f"Friend of {ALICE}")
    before = Subject.objects.get(key=BOB).rev
    done = services.forget(author=as_kee, subject_id=ALICE, now=T0)
    assert (done.remaining, Subject.objects.get().rev) == ({"memory_subject": 1}, before)


TOLD = "Has a zebra at home, " * 8


@pytest.mark.parametrize("title", [TOLD[:150], None], ids=["title", "summary"])
def test_a_digest_loses_what_it_was_called_by_with_the_words_of_its_receipt(as_kee: Caller, title: str | None) -> None:
    add(as_kee)
    item = remember(as_kee, "a zebra at home, has a zebra").item
    about = {"subject_id": ALICE}
    post_grouped(as_kee, "pr:1", title=title, summary=TOLD, metadata=about, flush_class="immediate")
    post_grouped(as_kee, "pr:2", title="a lion at home", metadata=about, flush_class="immediate")
    assert "zebra" in str(list(Entry.objects.values_list("summary", flat=True)))

    services.forget(author=as_kee, subject_id=ALICE, item=item.pk, now=T0)

    assert traces("zebra") == {}
    first, second = Entry.objects.order_by("pk").values_list("summary", flat=True)
    assert (first, "lion" in str(second)) == ("", True)


def test_a_digest_made_since_its_receipt_was_forgotten_stays(transactional_db: None) -> None:
    kee = make_caller(make_tenant("acme"))
    with acting_as(kee):
        add(kee)
        add(kee, BOB)
        post_grouped(kee, "pr:1", title="a zebra", metadata={"subject_id": ALICE}, flush_class="immediate")
    with acting_as(kee):
        services.forget(author=kee, subject_id=ALICE, now=T0)
    with acting_as(kee):
        post_grouped(kee, "pr:1", title="a lion", flush_class="immediate")
    with acting_as(kee):
        services.forget(author=kee, subject_id=BOB, now=T0)
    with acting_as(kee):
        assert ["lion" in str(said) for (said,) in Entry.objects.order_by("pk").values_list("summary")] == [False, True]
