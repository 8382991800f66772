"""Repetitions of what was forgotten on request, which are refused wherever something is written."""

from collections.abc import Collection, Iterable

from apps.core.erasure import Wanted
from apps.memory import selectors
from apps.memory.errors import ForgottenOnRequest
from apps.memory.models import Item, Subject
from apps.memory.references import subject_ids_in, written_in
from apps.memory.selectors import Thing
from apps.memory.texts import same_text
from apps.principals.tenancy import Caller


def refuse_forgotten(author: Caller, *said: object, text: str = "", conversation_id: str | None = None) -> None:
    """Refuse what names somebody who was forgotten, or says again what was forgotten of whom it names, or is said with.

    One keyed look, and none where no id of a subject is named and no conversation goes on.

    :param said: texts and documents in which an id may stand, as forgetting looks for it.
    :param text: the words themselves, in which one may stand too.
    :param conversation_id: the author's conversation that they are of.
    :raises ForgottenOnRequest: if so, unless who or what was forgotten is remembered again.
    """
    digest = same_text(text)
    things: list[Thing] = [thing for name in subject_ids_in(text, *said) for thing in ((name,), (name, digest))]
    if conversation_id is not None:
        things.append(_turn(author.principal_id, conversation_id, digest))
    found = selectors.forgotten_among(things, tenant_id=author.tenant_id)
    if any(_stands_in(written_in(text, *said), thing) and not _is_remembered(author, thing) for thing in found):
        raise ForgottenOnRequest("What this says, or whom it names, was forgotten on request; it is not written again.")


def marks_of_turns(turns: Iterable[tuple[int, str, str]]) -> set[bytes]:
    """By what that is known again which was said in conversations: of each whose it is, its id, and the words."""
    return {
        selectors.mark_of(*_turn(principal_id, conversation_id, same_text(text)))
        for principal_id, conversation_id, text in turns
        if text
    }


def marks_of_texts(subject_id: str, texts: Iterable[str]) -> set[bytes]:
    """By what that is known again which was said of a subject."""
    return {selectors.mark_of(subject_id, same_text(text)) for text in texts}


def _turn(principal_id: int, conversation_id: str, digest: bytes) -> Thing:
    return ("turn", str(principal_id), conversation_id, digest)


def _stands_in(told: Collection[str], thing: Thing) -> bool:
    """Whether it is of a conversation, or of a subject whom forgetting would find there: not all that may be an id is one."""
    match thing:
        case (str(name),) | (str(name), _):
            wanted = Wanted(tenant_id=0, reference=name)
            return any(wanted.stands_in(one) for one in told)
        case _:
            return True


def _is_remembered(author: Caller, thing: Thing) -> bool:
    """Whether a subject, or an item, is remembered again at the subject's own wish; what was said in passing never is."""
    match thing:
        case (name,):
            return Subject.objects.filter(tenant_id=author.tenant_id, key=name).exists()
        case (name, digest):
            return Item.objects.filter(tenant_id=author.tenant_id, subject__key=name, text_digest=digest).exists()
        case _:
            return False
