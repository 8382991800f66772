"""Repetitions of what was forgotten on request, which are refused wherever something is written."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime

from apps.core.erasure import Wanted
from apps.core.errors import Unavailable
from apps.memory import selectors, sql
from apps.memory.errors import ForgottenOnRequest, TooManyNamed
from apps.memory.models import Item, Subject
from apps.memory.references import MOST_NAMED, subject_ids_in, written_in
from apps.memory.selectors import Thing
from apps.memory.services.marks import called, digests_of_any, known_by, of_any, said_in
from apps.principals.tenancy import Caller


def refuse_forgotten(
    author: Caller,
    *said: object,
    words: Sequence[str] = (),
    about: Collection[str] = (),
    conversation_id: str | None = None,
    said_at: datetime | None = None,
) -> None:
    """Refuse what names somebody who was forgotten, or says again what was forgotten of whom it names, or is said with.

    Whom it names is not forgotten before the write is committed. One keyed look, and others where that finds something;
    none where no id of a subject is named and no conversation goes on.

    :param said: texts and documents in which an id may stand, as forgetting looks for it.
    :param words: the words themselves, in which one may stand too.
    :param about: subjects that the author holds, and that it is about without naming them.
    :param conversation_id: the author's conversation that they are of.
    :param said_at: when they were said, if they are a turn of it. Words that tell next to nothing are the same turn only if
        they were said at the same moment.
    :raises ForgottenOnRequest: if so, unless who or what was forgotten is remembered again.
    :raises TooManyNamed: if it may name more subjects than are looked for at once.
    :raises Unavailable: if one that it names is being forgotten just now.
    """
    names = subject_ids_in(*words, *said)
    # Before the look, which then sees what was forgotten until now.
    may_write = _enters(author, names)
    things: list[Thing] = [(name,) for name in names]
    whom = names | set(about)
    known = known_by(words, said) if whom or conversation_id is not None else {}
    if whom:
        things += map(of_any, known)
    if conversation_id is not None:
        name = called(conversation_id)
        things += [
            said_in(author.principal_id, name, digest, None if tells else said_at) for digest, tells in known.items()
        ]
    found = _forgotten(author, things, whom)
    told = written_in(*words, *said) if found else set()
    if any(_stands_in(told, about, thing) for thing in found - _remembered(author, found)):
        raise ForgottenOnRequest("What this says, or whom it names, was forgotten on request; it is not written again.")
    # Not sooner: what is forgotten is seen by those who waited for it a moment before its name is given up.
    if not may_write:
        raise _being_forgotten()


def keep_from_being_forgotten(author: Caller, names: Collection[str]) -> None:
    """See that none of these subjects is forgotten before this transaction ends; nothing is asked about none.

    :raises Unavailable: if one is being forgotten just now.
    """
    if not _enters(author, names):
        raise _being_forgotten()


def _enters(author: Caller, names: Collection[str]) -> bool:
    return not names or sql.enter_writing(author.tenant_id, names)


def _being_forgotten() -> Unavailable:
    return Unavailable("Somebody whom this names is being forgotten just now; ask again in a moment.")


def _forgotten(author: Caller, things: Iterable[Thing], whom: Collection[str]) -> set[Thing]:
    """Those of these things that were forgotten, and of the words among them which of them of one of these subjects.

    :raises TooManyNamed: if that is too much to ask.
    """
    found = selectors.forgotten_among(things, tenant_id=author.tenant_id)
    digests = digests_of_any(found)
    if len(digests) * len(whom) > MOST_NAMED:
        raise TooManyNamed("This may say too much of too many subjects again; write it in several parts.")
    pairs: list[Thing] = [(name, digest) for name in whom for digest in digests]
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
