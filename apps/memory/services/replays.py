"""Repetitions of what was forgotten on request, which are refused wherever something is written."""

from collections.abc import Collection, Iterable
from datetime import UTC, datetime

from apps.core.erasure import Wanted
from apps.core.errors import Unavailable
from apps.memory import selectors, sql
from apps.memory.errors import ForgottenOnRequest
from apps.memory.models import Item, Subject
from apps.memory.references import subject_ids_in, written_in
from apps.memory.selectors import Thing
from apps.memory.texts import is_telling, same_text
from apps.principals.tenancy import Caller


def refuse_forgotten(
    author: Caller,
    *said: object,
    text: str = "",
    conversation_id: str | None = None,
    said_at: datetime | None = None,
) -> None:
    """Refuse what names somebody who was forgotten, or says again what was forgotten of whom it names, or is said with.

    Whom it names is not forgotten before the write is committed. One keyed look, and another for that where somebody may be
    named; none where no id of a subject is named and no conversation goes on.

    :param said: texts and documents in which an id may stand, as forgetting looks for it.
    :param text: the words themselves, in which one may stand too.
    :param conversation_id: the author's conversation that they are of.
    :param said_at: when they were said, if they are a turn of it. Words that tell next to nothing are the same turn only if
        they were said at the same moment.
    :raises ForgottenOnRequest: if so, unless who or what was forgotten is remembered again.
    :raises TooManyNamed: if it may name more subjects than are looked for at once.
    :raises Unavailable: if one that it names is being forgotten just now.
    """
    digest = same_text(text)
    names = subject_ids_in(text, *said)
    # Before the look, which then sees what was forgotten until now.
    keep_from_being_forgotten(author, names)
    things: list[Thing] = [thing for name in names for thing in ((name,), (name, digest))]
    if conversation_id is not None:
        things.append(_said_in(author.principal_id, conversation_id, text, said_at))
    found = selectors.forgotten_among(things, tenant_id=author.tenant_id)
    if not found:
        return
    told = written_in(text, *said)
    if any(_stands_in(told, thing) for thing in found - _remembered(author, found)):
        raise ForgottenOnRequest("What this says, or whom it names, was forgotten on request; it is not written again.")


def keep_from_being_forgotten(author: Caller, names: Collection[str]) -> None:
    """See that none of these subjects is forgotten before this transaction ends; nothing is asked about none.

    :raises Unavailable: if one is being forgotten just now.
    """
    if names and not sql.enter_writing(author.tenant_id, names):
        raise Unavailable("Somebody whom this names is being forgotten just now; ask again in a moment.")


def marks_of_said(said: Iterable[tuple[int, str, str, datetime | None]]) -> set[bytes]:
    """By what that is known again which was said in conversations: of each whose it is, its id, the words, and when they
    were said if they are a turn."""
    return {selectors.mark_of(*_said_in(*one)) for one in said if one[2]}


def marks_of_texts(subject_id: str, texts: Iterable[str]) -> set[bytes]:
    """By what that is known again which was said of a subject."""
    return {selectors.mark_of(subject_id, same_text(text)) for text in texts}


def _said_in(principal_id: int, conversation_id: str, text: str, said_at: datetime | None) -> Thing:
    """What was said in a conversation: known again by its words, or, where these are anybody's, by its moment too."""
    thing: Thing = ("turn", str(principal_id), conversation_id, same_text(text))
    return thing if said_at is None or is_telling(text) else (*thing, said_at.astimezone(UTC).isoformat())


def _stands_in(told: Collection[str], thing: Thing) -> bool:
    """Whether it is of a conversation, or of a subject whom forgetting would find there: not all that may be an id is one."""
    match thing:
        case (str(name),) | (str(name), _):
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
