"""Repetitions of what was forgotten on request, which are refused wherever something is written."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Final

from apps.core.erasure import Wanted
from apps.core.errors import Unavailable
from apps.memory import selectors, sql
from apps.memory.errors import ForgottenOnRequest, TooManyNamed
from apps.memory.models import Item, Observation, Session, Subject
from apps.memory.references import MOST_NAMED, subject_ids_in, texts_in, written_in
from apps.memory.selectors import Thing
from apps.memory.services.marks import called, digests_of_any, known_by, of_any, said_in
from apps.memory.texts import telling
from apps.principals.tenancy import Caller

# Of the turns of a conversation so many are looked at with one look.
_TURNS: Final = 1_000
# Where a turn says something.
_OF_TURNS: Final = ("text", "speaker", "domain", "evidence", "metadata")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What stands already and stays, and is read together with what is written."""

    words: Sequence[str] = ()
    others: Sequence[object] = ()
    about: Collection[str] = ()
    """Subjects that it is about without naming them."""


_NOTHING: Final = Standing()


def refuse_forgotten(
    author: Caller,
    *said: object,
    words: Sequence[str] = (),
    about: Collection[str] = (),
    conversation_id: str | None = None,
    said_at: datetime | None = None,
    again: Collection[str] = (),
    beside: Standing = _NOTHING,
) -> None:
    """Refuse what names somebody who was forgotten, or says again what was forgotten of whom it names, or is said with.

    Whom it names is not forgotten before the write is committed. One keyed look, and others where that finds something;
    none where no id of a subject is named, and it is about none, and no conversation goes on.

    :param said: texts and documents in which an id may stand, as forgetting looks for it.
    :param words: the words themselves, in which one may stand too.
    :param about: subjects that the author holds, and that it is about without naming them.
    :param conversation_id: the author's conversation that they are of.
    :param said_at: when they were said, if they are a turn of it. Words that tell next to nothing are the same turn only if
        they were said at the same moment, with whomever they are said.
    :param again: subjects at whose own wish what was forgotten of them is said again.
    :param beside: what this is read with. Of whom it is already said, it is not said anew.
    :raises ForgottenOnRequest: if so, unless who or what was forgotten is remembered again.
    :raises TooManyNamed: if it may name more subjects than are looked for at once.
    :raises Unavailable: if one that it names is being forgotten just now.
    """
    names, stood = subject_ids_in(*words, *said), subject_ids_in(*beside.words, *beside.others)
    # Before the look, which then sees what was forgotten until now.
    may_write = _enters(author, names | stood)
    things: list[Thing] = [(name,) for name in names]
    named, with_whom = (names | stood) - set(again), set(about) - set(again)
    known = known_by(words, said) if named or with_whom or conversation_id is not None else {}
    if conversation_id is not None:
        name = called(conversation_id)
        things += [
            said_in(author.principal_id, name, digest, None if tells else said_at) for digest, tells in known.items()
        ]
    anew = (named | with_whom) - stood - set(beside.about)
    of_whom = dict.fromkeys(known_by(beside.words, beside.others), anew) if anew else {}
    of_whom |= {digest: named | with_whom if tells or said_at is None else named for digest, tells in known.items()}
    found = _forgotten(author, things, of_whom)
    told = written_in(*words, *said, *beside.words, *beside.others) if found else set()
    if any(_stands_in(told, about, thing) for thing in found - _remembered(author, found)):
        raise _forgotten_on_request()
    # Not sooner: what is forgotten is seen by those who waited for it a moment before its name is given up.
    if not may_write:
        raise _being_forgotten()


def refuse_forgotten_turns(author: Caller, session: Session, subject_id: str) -> None:
    """Refuse that what was said in a conversation comes to be about a subject, which the author holds, of whom some of it
    was forgotten. Turns that tell next to nothing are nobody's.

    :raises ForgottenOnRequest: if so, unless it is remembered again.
    """
    turns = Observation.objects.filter(session=session).exclude(text="").values_list(*_OF_TURNS).iterator(_TURNS)
    while some := list(islice(turns, _TURNS)):
        things: list[Thing] = [(subject_id, digest) for digest in telling(texts_in(*some))]
        found = selectors.forgotten_among(things, tenant_id=author.tenant_id)
        if found - _remembered(author, found):
            raise _forgotten_on_request()


def keep_from_being_forgotten(author: Caller, names: Collection[str]) -> None:
    """See that none of these subjects is forgotten before this transaction ends; nothing is asked about none.

    :raises Unavailable: if one is being forgotten just now.
    """
    if not _enters(author, names):
        raise _being_forgotten()


def _enters(author: Caller, names: Collection[str]) -> bool:
    return not names or sql.enter_writing(author.tenant_id, names)


def _forgotten_on_request() -> ForgottenOnRequest:
    return ForgottenOnRequest(
        "What this says, or whom it names, was forgotten on request; only the subject's own wish undoes that (`remember_again`)."
    )


def _being_forgotten() -> Unavailable:
    return Unavailable("Somebody whom this names is being forgotten just now; ask again in a moment.")


def _forgotten(author: Caller, things: Collection[Thing], of_whom: Mapping[bytes, Collection[str]]) -> set[Thing]:
    """Those of these things that were forgotten, and of these words, which of them of one of their subjects.

    :raises TooManyNamed: if that is too much to ask.
    """
    asked = [of_any(digest) for digest, subjects in of_whom.items() if subjects]
    found = selectors.forgotten_among([*things, *asked], tenant_id=author.tenant_id)
    digests = digests_of_any(found)
    if sum(len(of_whom[digest]) for digest in digests) > MOST_NAMED:
        raise TooManyNamed("This may say too much of too many subjects again; write it in several parts.")
    pairs: list[Thing] = [(name, digest) for digest in digests for name in of_whom[digest]]
    return found - set(map(of_any, digests)) | selectors.forgotten_among(pairs, tenant_id=author.tenant_id)


def _stands_in(told: Collection[str], about: Collection[str], thing: Thing) -> bool:
    """Whether it is of a conversation, or of a subject whom forgetting would find there: not all that may be an id is one."""
    match thing:
        case (str(name),) | (str(name), _) if name not in about:
            wanted = Wanted(tenant_id=0, reference=name)
            return any(wanted.stands_in(one) for one in told)
        case _:
            return True


def _remembered(author: Caller, things: Iterable[Thing]) -> set[Thing]:
    """The subjects, and the items, that are remembered again at the subject's own wish; what was said in passing never is."""
    subjects = [thing[0] for thing in things if not thing[1:]]
    items = {thing for thing in things if thing[1:] and not thing[2:]}
    remembered: set[Thing] = set()
    if subjects:
        rows = Subject.objects.filter(tenant_id=author.tenant_id, key__in=subjects)
        remembered |= set(rows.values_list("key"))
    if items:
        names, digests = zip(*items, strict=True)
        said = Item.objects.filter(tenant_id=author.tenant_id, subject__key__in=names, text_digest__in=digests)
        pairs = said.order_by().values_list("subject__key", "text_digest").distinct()
        remembered |= items & {(key, bytes(digest)) for key, digest in pairs}
    return remembered
