"""One declaration per operation: the source of the MCP tool, the REST route, OpenAPI and the credential matrix.

An app's `tools.py` declares what it offers::

    @operation(title="Read the inbox", scope="inbox", routes=[Route("GET", "/api/v1/inbox")], read_only=True)
    def read_inbox(caller: Caller, given: ReadInbox) -> InboxPage:
        \"\"\"What an agent reads about this tool.\"\"\"

The function parses nothing and renders nothing: it makes one service call as the caller.
"""

import re
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, Protocol, TypeVar, get_type_hints

from pydantic import BaseModel
from rest_framework.exceptions import APIException

from apps.core.errors import DomainError, Forbidden, NotFound
from apps.core.retries import ATTEMPTS, retried
from apps.core.schemas import parse
from apps.core.together import Together

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


class MissingScope(Forbidden):
    """The token does not carry the scope that this operation needs."""

    code = "missing_scope"


class UnknownOperation(NotFound):
    """There is no operation of this name, or the caller may not see it."""

    code = "unknown_operation"


class Acting(Protocol):
    """Who calls. The identity itself lives above core; this is all that core needs of it."""

    @property
    def scopes(self) -> Collection[str]: ...

    @property
    def token_id(self) -> int | None:
        """The token that was presented; None for the product itself."""

    def acting(self, *, lock_timeout: str | None = None) -> AbstractContextManager[None]:
        """A transaction in which the database shows this caller's tenant and nothing else."""


class Credential(Hashable, Protocol):
    """What a request presents to say who calls. Two of the same caller may be equal."""

    def caller(self) -> Acting:
        """:raises rest_framework.exceptions.APIException: if it stands for nobody."""

    def acting(self, *, lock_timeout: str | None = None) -> AbstractContextManager[Acting]:
        """A transaction of the caller, who is found out by its beginning.

        :raises rest_framework.exceptions.APIException: if it stands for nobody.
        """


Reader = Callable[[Acting], BaseModel]
"""Reads the input of a caller who may call; again where a transaction has to be tried again."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where an operation answers over HTTP.

    `path` may hold parameters (`/api/v1/receipts/{receipt_id}`), which are members of the input.
    `manner="service"` answers as the service-to-service doors are documented: errors as `{error, message, …}`,
    any fault of the credential as the same 403.
    """

    method: Method
    path: str
    status: int = 200
    also: tuple[int, ...] = ()
    """Further statuses of success, which the function answers by a :class:`Reply`; 204 has no body."""
    manner: Literal["problem", "service"] = "problem"
    max_body: int = 524_288

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(re.findall(r"{(\w+)}", self.path))


@dataclass(frozen=True, slots=True)
class Reply:
    """An output with a status of its own (`200` for a duplicate, `204` with no output)."""

    output: BaseModel | None
    status: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far something is that is waited for, in words for whoever waits."""

    done: int
    total: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """How one waits for an operation's answer: interfaces ask it again, outside any transaction, at each cue."""

    topics: Callable[[Any, Any], Collection[str]]
    """Of the caller and the input: the cues that say that the answer may be another."""
    found: Callable[[Any], bool]
    """Whether there is something in an output at all, so that nobody needs to wait for it."""
    worth_waking: Callable[[Any, Any], bool]
    """Of the input and an output: whether what came meanwhile ends the wait."""
    patience: Callable[[Any], float] = lambda _: 0.0
    """Of the input: how many seconds it asks to wait. An operation that streams needs none."""
    progress: Callable[[Any], Progress | None] = lambda _: None
    """Of an output: how far it is, where its readers want to hear of that before the end."""
    rivals: Callable[[Any, Any], Hashable] | None = None
    """Of the caller and the input, where an answer takes what others wait for too: what those have in common who would
    be answered the same. Where one of them has looked and found nothing, the others need not look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """How an operation's route goes on answering: as server-sent events, one for each output with something in it."""

    event: str
    mark: Callable[[Any], int]
    """Of an output: how far it goes, which is the event's id."""
    resumes: str
    """The member of the input that takes such an id, which a client that comes again sends as `Last-Event-ID`."""
    begin: Callable[[Any, Any], None]
    """Of the caller and the input: refuses a start, while there is still a status to refuse it with."""
    further: Callable[[Any, Any], Any]
    """Of an input and the output just sent: the input for what comes after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meets:
    """How calls of one caller that come at the same moment are made in one transaction.

    Each is answered as it would be alone; see :mod:`apps.core.together`.
    """

    may: Callable[[Any], bool]
    """Of an input: whether it can be made together with others at all."""
    run: Callable[[Any, Sequence[Any]], Sequence["BaseModel | Reply | DomainError | None"]]
    """Of the caller and the inputs: an answer to each; None for what must be made alone after all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What the registry knows of one operation."""

    name: str
    title: str
    description: str
    app: str
    scopes: frozenset[str]
    """Any one of these suffices; none: any valid credential."""
    input: type[BaseModel]
    output: type[BaseModel]
    run: Callable[[Any, Any], "BaseModel | Reply"] = field(repr=False)
    routes: tuple[Route, ...]
    tool: bool
    read_only: bool
    destructive: bool
    idempotent: bool
    transactions: Callable[[], bool] = field(repr=False)
    waits: Waits | None
    streams: Streams | None
    meets: Meets | None

    @property
    def own_transactions(self) -> bool:
        """Whether the function opens the caller's transaction itself."""
        return self.transactions()

    def patience(self, given: BaseModel) -> float:
        """How many seconds an input asks to wait."""
        return self.waits.patience(given) if self.waits else 0.0

    def visible_to(self, caller: Acting) -> bool:
        return not self.scopes or not self.scopes.isdisjoint(caller.scopes)


_registry: Final[dict[str, Operation]] = {}

F = TypeVar("F", bound=Callable[..., "BaseModel | Reply"])


def operation(
    *,
    title: str,
    scope: str | Sequence[str] = (),
    output: type[BaseModel] | None = None,
    routes: Sequence[Route] = (),
    tool: bool = True,
    read_only: bool = False,
    destructive: bool = False,
    idempotent: bool = False,
    own_transactions: bool | Callable[[], bool] = False,
    waits: Waits | None = None,
    streams: Streams | None = None,
    meets: Meets | None = None,
) -> Callable[[F], F]:
    """Declare an operation.

    :param scope: one scope or several of which any suffices.
    :param output: only where the function answers a :class:`Reply`; else its return annotation says it.
    :param own_transactions: the function opens `caller.acting()` itself, because it waits or calls out; or when it does so here.
    :param streams: its routes answer as a stream; it is no tool.
    """

    def declare(function: F) -> F:
        hints = get_type_hints(function)
        name = function.__name__
        if name in _registry:
            raise ValueError(f"The operation {name!r} is declared twice.")
        _registry[name] = Operation(
            name=name,
            title=title,
            description=" ".join((function.__doc__ or "").split()),
            app=function.__module__.split(".")[1],
            scopes=frozenset([scope] if isinstance(scope, str) else scope),
            input=hints["given"],
            output=output or hints["return"],
            run=function,
            routes=tuple(routes),
            tool=tool,
            read_only=read_only,
            destructive=destructive,
            idempotent=idempotent or read_only,
            transactions=own_transactions if callable(own_transactions) else partial(bool, own_transactions),
            waits=waits,
            streams=streams,
            meets=meets,
        )
        return function

    return declare


def all_operations() -> list[Operation]:
    """Every declared operation, by name."""
    return [_registry[name] for name in sorted(_registry)]


def find(name: str) -> Operation:
    """:raises UnknownOperation: if nothing of that name is declared."""
    try:
        return _registry[name]
    except KeyError:
        raise UnknownOperation(f"There is no operation {name[:100]!r}.") from None


def permit(declared: Operation, caller: Acting) -> None:
    """Interfaces ask this before they look at the arguments, so that who may not call learns nothing from them.

    :raises MissingScope: if the caller holds none of the operation's scopes.
    """
    if not declared.visible_to(caller):
        raise MissingScope(f"{declared.name} needs the scope {' or '.join(sorted(declared.scopes))}.")


def call(declared: Operation, caller: Acting, given: BaseModel) -> Reply:
    """Run an operation as a caller who is known.

    :raises MissingScope: if the caller holds none of its scopes.
    :raises DomainError: whatever the operation refuses.
    """
    return answer(declared, _Known(caller), lambda _: given)


def answer(declared: Operation, credential: Credential, read: Reader) -> Reply:
    """Run an operation as whoever a credential stands for: found out by what begins the transaction, where there is one.

    :raises rest_framework.exceptions.APIException: if it stands for nobody.
    :raises MissingScope: if the caller holds none of the operation's scopes, before anything is read.
    :raises DomainError: whatever the operation refuses.
    """
    reply = _by_itself(declared, credential, read) if declared.own_transactions else _in_one(declared, credential, read)
    return reply if isinstance(reply, Reply) else Reply(reply, status=0)


@dataclass(frozen=True, slots=True)
class _Known:
    """The credential of a caller about whom nothing has to be found out."""

    who: Acting

    def caller(self) -> Acting:
        return self.who

    @contextmanager
    def acting(self, *, lock_timeout: str | None = None) -> Iterator[Acting]:
        with self.who.acting(lock_timeout=lock_timeout):
            yield self.who


def _by_itself(declared: Operation, credential: Credential, read: Reader) -> BaseModel | Reply:
    caller = credential.caller()
    permit(declared, caller)
    given = read(caller)
    # What committed a part of its work and can't be repeated is tried once.
    return retried(lambda: declared.run(caller, given), attempts=ATTEMPTS if declared.idempotent else 1)


def _in_one(declared: Operation, credential: Credential, read: Reader) -> BaseModel | Reply:
    alone = partial(retried, partial(_alone, declared, credential, read))
    if not declared.meets:
        return alone()
    many = partial(_meeting, declared, declared.meets, credential)
    return _together.do((declared.name, credential), read, alone=alone, many=many)


_together: Final = Together[Reader, BaseModel | Reply]()


def _alone(declared: Operation, credential: Credential, read: Reader) -> BaseModel | Reply:
    with credential.acting() as caller:
        permit(declared, caller)
        return declared.run(caller, read(caller))


def _meeting(
    declared: Operation, meets: Meets, credential: Credential, readers: Sequence[Reader]
) -> Sequence[BaseModel | Reply | DomainError | None]:
    try:
        with credential.acting(lock_timeout=_PATIENCE) as caller:
            permit(declared, caller)
            given = [_read(meets, read, caller) for read in readers]
            fit = [one for one in given if isinstance(one, BaseModel)]
            answers = iter(meets.run(caller, fit) if fit else ())
            return [next(answers) if isinstance(one, BaseModel) else one for one in given]
    except (APIException, MissingScope):  # who may not call hears it alone
        return [None for _ in readers]


def _read(meets: Meets, read: Reader, caller: Acting) -> BaseModel | DomainError | None:
    try:
        given = read(caller)
    except DomainError as refusal:
        return refusal
    return given if meets.may(given) else None


# Of a group with a lock that somebody holds, as it keeps what others of it have locked from strangers: longer than those
# before it at a busy place take to write, and no longer.
_PATIENCE: Final = "100ms"


def begin(declared: Operation, caller: Acting, given: BaseModel) -> None:
    """Before a stream is begun.

    :raises DomainError: whatever the operation refuses of its start.
    """
    if declared.streams:
        with caller.acting():
            declared.streams.begin(caller, given)


def call_with(declared: Operation, caller: Acting, arguments: Any) -> Reply:
    """As :func:`call`, with decoded JSON as arguments; who may not call learns nothing of them."""
    permit(declared, caller)
    return call(declared, caller, parse(declared.input, arguments))


__all__ = [
    "Acting",
    "Credential",
    "DomainError",
    "Meets",
    "MissingScope",
    "Operation",
    "Progress",
    "Reply",
    "Route",
    "Streams",
    "UnknownOperation",
    "Waits",
    "all_operations",
    "answer",
    "begin",
    "call",
    "call_with",
    "find",
    "operation",
    "permit",
]
