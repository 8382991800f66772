"""One declaration per operation: the source of the MCP tool, the REST route, OpenAPI and the tests of all operations.

An app's `tools.py` declares what it offers::

    @operation(title="Read the inbox", scope="inbox", routes=[Route("GET", "/api/v1/inbox")], read_only=True)
    def read_inbox(caller: Caller, given: ReadInbox) -> InboxPage:
        \"\"\"The description that an agent reads.\"\"\"

The function parses nothing and renders nothing: it makes one service call as the caller.
"""

import re
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from operator import attrgetter
from typing import Any, Final, Literal, Protocol, TypeVar, get_type_hints

from django.utils.module_loading import autodiscover_modules
from pydantic import BaseModel

from apps.core.coalescing import GROUP_PATIENCE, Coalescer
from apps.core.errors import DomainError, Forbidden, NotFound
from apps.core.schemas import parse
from apps.core.sql import ATTEMPTS, retried

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Role = Literal["agent", "worker"]


class MissingScope(Forbidden):
    """The token does not carry the scope that this operation needs."""

    code = "missing_scope"


class BaseCaller(Protocol):
    """Who calls, as far as core needs to know. The class itself is :class:`apps.principals.tenancy.Caller`."""

    @property
    def scopes(self) -> Collection[str]: ...

    @property
    def token_id(self) -> int | None:
        """The token that was presented; None for the product itself."""

    def acting(self, *, lock_timeout: str | None = None) -> AbstractContextManager[None]:
        """A transaction in which the database shows this caller's tenant and nothing else."""


class Credential(Hashable, Protocol):
    """What a request presents to prove who calls. Two credentials of one caller may be equal."""

    def caller(self) -> BaseCaller:
        """:raises rest_framework.exceptions.APIException: if the credential is not valid."""

    def acting(self, *, lock_timeout: str | None = None) -> AbstractContextManager[BaseCaller]:
        """A transaction of the caller, whom its first statement looks up.

        :raises rest_framework.exceptions.APIException: if the credential is not valid.
        """

    @property
    def company(self) -> Hashable:
        """What credentials have in common of which a transaction may serve several."""

    def acting_with(
        self, others: Sequence["Credential"], *, lock_timeout: str
    ) -> AbstractContextManager[Mapping["Credential", BaseCaller]]:
        """A transaction for these credentials of one company, this one among them, with the callers of those that
        are valid. The others, and one whose use is to be noted, are left out."""


Reader = Callable[[BaseCaller], BaseModel]
"""Reads the input of a caller who may call; called again where a transaction is tried again."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where an operation answers over HTTP.

    `path` may hold parameters (`/api/v1/receipts/{receipt_id}`), which are members of the input.
    `manner="service"` answers as the service-to-service routes are documented: errors as `{error, message, …}`, any
    invalid credential as the same 403.
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
    """How far something is that a caller waits for."""

    done: int
    total: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """How a caller waits for an answer: the interface asks the operation again at each notification."""

    topics: Callable[[Any, Any], Collection[str]]
    """Of the caller and the input: the topics whose notification may change the answer."""
    found: Callable[[Any], bool]
    """Whether a first output holds something, so that nobody needs to wait."""
    worth_waking: Callable[[Any, Any], bool]
    """Of the input and a later output: whether it ends the wait."""
    patience: Callable[[Any], float] = lambda _: 0.0
    """Of the input: how many seconds it asks to wait. An operation that streams needs none."""
    turn: Callable[[Any], Hashable] = lambda _: None
    """Of the input, where what one finds nobody else finds: what makes two inputs find the same. Such waiters look one
    after the other."""
    progress: Callable[[Any], Progress | None] = lambda _: None
    """Of an output: how far it is, if callers want to know before the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """How an operation's route streams: as server-sent events, one for each output with something in it."""

    event: str
    mark: Callable[[Any], int]
    """Of an output: the event's id, which says how far the client is."""
    resumes: str
    """The member of the input that takes such an id, which a client that comes again sends as `Last-Event-ID`."""
    begin: Callable[[Any, Any], None]
    """Of the caller and the input: refuses a start, while there is still a status to refuse it with."""
    further: Callable[[Any, Any], Any]
    """Of an input and the output just sent: the input for what comes after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coalesces:
    """How calls that arrive at the same moment share a transaction.

    Each is answered as it would be alone; see :mod:`apps.core.coalescing`.
    """

    may: Callable[[Any], bool]
    """Of an input: whether the call may be made together with others."""
    run: Callable[[Sequence[tuple[Any, Any]]], Sequence["BaseModel | Reply | DomainError | None"]]
    """Of callers and inputs: an answer to each; None for a call that must be made alone."""
    of_one_caller: bool = False
    """Calls of several callers of a tenant are not made together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Questionnaire:
    """What a person is asked before an operation can go on."""

    about: str
    """What the answer belongs to."""
    text: str
    fields: Mapping[str, Mapping[str, Any]]
    """The JSON schemas of strings, numbers and booleans; without any, the text asks for a yes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asks:
    """How an operation has a person asked for what it needs, where the caller's client can show a form."""

    questionnaire: Callable[[Any], Questionnaire | None]
    """Of an output: what is to be asked, if anything is."""
    go_on: Callable[[Any, Any, str, Mapping[str, Any] | None], BaseModel]
    """Of the caller, the input, what a questionnaire was about and its values: the next output. Without values: how it stands.
    It opens its own transactions.
    """


F = TypeVar("F", bound=Callable[..., "BaseModel | Reply"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What the registry knows of one operation, and the decorator that declares the function which carries it out."""

    title: str
    scope: str | Sequence[str] = ()
    """One scope, or several of which any suffices; none: any valid credential."""
    output: type[BaseModel] = BaseModel
    """Given only where the function answers a :class:`Reply`; else its return annotation says it."""
    routes: Sequence[Route] = ()
    tool: bool = True
    listed_for: Collection[Role] = ()
    """Who sees it in the list of tools without asking for more; the others find it by `find_tools`."""
    keywords: str = ""
    """Words by which it is looked for, and that its description does not have."""
    example: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Arguments of a call of the tool, which its description shows."""
    after_refusal: str = field(default="", repr=False)
    """What a model does next if a call was refused, where the refusal does not say it itself."""
    read_only: bool = False
    destructive: bool = False
    idempotent: bool = False
    """What only reads is so in any case."""
    own_transactions: bool | Callable[[], bool] = field(default=False, repr=False)
    """Whether the function opens `caller.acting()` itself, because it waits or calls out."""
    apart: Callable[[Any], bool] = field(default=lambda _: False, repr=False)
    """Of an input, whether the function must be called after the transaction in which it is read, and opens its own,
    because it stores something first. For idempotent operations only."""
    waits: Waits | None = None
    streams: Streams | None = None
    """Its routes answer as a stream; it is no tool."""
    coalesces: Coalesces | None = None
    asks: Asks | None = None
    under_way: Callable[[Any], str | None] = field(default=lambda _: None, repr=False)
    """Of an output: the task or execution that the call has begun and that has not ended."""

    # No options: the function that is declared tells them.
    name: str = ""
    description: str = ""
    app: str = ""
    scopes: frozenset[str] = frozenset()
    input: type[BaseModel] = BaseModel
    run: Callable[[Any, Any], "BaseModel | Reply"] = field(default=Reply, repr=False)

    def __call__(self, function: F) -> F:
        """Declare the operation that a function carries out."""
        hints = get_type_hints(function)
        name = function.__name__
        if name in _registry:
            raise ValueError(f"The operation {name!r} is declared twice.")
        _registry[name] = replace(
            self,
            name=name,
            description=" ".join((function.__doc__ or "").split()),
            app=function.__module__.split(".")[1],
            scopes=frozenset([self.scope] if isinstance(self.scope, str) else self.scope),
            input=hints["given"],
            output=hints["return"] if self.output is BaseModel else self.output,
            run=function,
            idempotent=self.idempotent or self.read_only,
        )
        return function

    @property
    def opens_transactions(self) -> bool:
        """Whether the function opens the caller's transaction itself, now."""
        return self.own_transactions() if callable(self.own_transactions) else self.own_transactions

    def patience(self, given: BaseModel) -> float:
        """How many seconds an input asks to wait."""
        return self.waits.patience(given) if self.waits else 0.0

    @property
    def groups(self) -> frozenset[str]:
        """What it belongs to, in the words of scopes: `tasks:queue` is in the group `tasks`."""
        return frozenset(scope.partition(":")[0] for scope in self.scopes)

    def visible_to(self, caller: BaseCaller) -> bool:
        return not self.scopes or not self.scopes.isdisjoint(caller.scopes)


operation: Final = Operation
_registry: Final[dict[str, Operation]] = {}


@cache
def _declared() -> dict[str, Operation]:
    """The registry, once the modules that declare operations are loaded: half of what a process loads, and few need it."""
    autodiscover_modules("tools")
    return _registry


def all_operations() -> list[Operation]:
    """Every declared operation, by name."""
    return sorted(_declared().values(), key=attrgetter("name"))


def named(name: str) -> Operation | None:
    return _declared().get(name)


def find(name: str) -> Operation:
    """:raises NotFound: if nothing of that name is declared."""
    found = named(name)
    if found is None:
        raise NotFound(f"There is no operation {name[:100]!r}.", code="unknown_operation")
    return found


def permit(declared: Operation, caller: BaseCaller) -> None:
    """Interfaces ask this before they look at the arguments, so that a caller without the scope learns nothing from them.

    :raises MissingScope: if the caller holds none of the operation's scopes.
    """
    if not declared.visible_to(caller):
        raise MissingScope(f"{declared.name} needs the scope {' or '.join(sorted(declared.scopes))}.")


def call(declared: Operation, caller: BaseCaller, given: BaseModel) -> Reply:
    """Run an operation as a caller who is known.

    :raises MissingScope: if the caller holds none of its scopes.
    :raises DomainError: whatever the operation refuses.
    """
    return answer(declared, _Known(caller), lambda _: given)


def answer(declared: Operation, credential: Credential, read: Reader) -> Reply:
    """Run an operation as the caller of a credential, whom the transaction's first statement looks up.

    :raises rest_framework.exceptions.APIException: if the credential is not valid.
    :raises MissingScope: if the caller holds none of the operation's scopes, before anything is read.
    :raises DomainError: whatever the operation refuses.
    """
    reply: BaseModel | Reply
    if declared.opens_transactions:
        caller = credential.caller()
        permit(declared, caller)
        given = read(caller)
        # An operation that may have committed a part of its work is not repeated.
        reply = retried(lambda: declared.run(caller, given), attempts=ATTEMPTS if declared.idempotent else 1)
    elif declared.coalesces:
        reply = _coalescer.call(**_shared(declared, declared.coalesces, credential, read))
    else:
        reply = retried(partial(_alone, declared, credential, read))
    return reply if isinstance(reply, Reply) else Reply(reply, status=0)


async def answer_awaited(declared: Operation, coalesces: Coalesces, credential: Credential, read: Reader) -> Reply:
    """As :func:`answer`, while the event loop goes on, for an operation that coalesces. `read` is called in a thread."""
    reply = await _coalescer.awaited(**_shared(declared, coalesces, credential, read))
    return reply if isinstance(reply, Reply) else Reply(reply, status=0)


def _shared(declared: Operation, coalesces: Coalesces, credential: Credential, read: Reader) -> dict[str, Any]:
    """A call as the coalescer takes it."""
    company: Hashable = credential if coalesces.of_one_caller else credential.company
    return {
        "common": (declared.name, company),
        "item": (credential, read),
        "alone": partial(retried, partial(_alone, declared, credential, read)),
        "many": partial(_together, declared, coalesces),
    }


@dataclass(frozen=True, slots=True)
class _Known:
    """The credential of a caller who need not be looked up."""

    known: BaseCaller

    def caller(self) -> BaseCaller:
        return self.known

    @contextmanager
    def acting(self, *, lock_timeout: str | None = None) -> Iterator[BaseCaller]:
        with self.known.acting(lock_timeout=lock_timeout):
            yield self.known

    @property
    def company(self) -> Hashable:
        return self

    @contextmanager
    def acting_with(
        self, others: Sequence[Credential], *, lock_timeout: str
    ) -> Iterator[Mapping[Credential, BaseCaller]]:
        with self.known.acting(lock_timeout=lock_timeout):
            yield dict.fromkeys(others, self.known)


_coalescer: Final = Coalescer[tuple[Credential, Reader], BaseModel | Reply]()


def _alone(declared: Operation, credential: Credential, read: Reader) -> BaseModel | Reply:
    with credential.acting() as caller:
        permit(declared, caller)
        given = read(caller)
        if not declared.apart(given):
            return declared.run(caller, given)
    return declared.run(caller, given)


def _together(
    declared: Operation, coalesces: Coalesces, calls: Sequence[tuple[Credential, Reader]]
) -> Sequence[BaseModel | Reply | DomainError | None]:
    def read_one(credential: Credential, read: Reader) -> tuple[BaseCaller, BaseModel] | DomainError | None:
        """What is to be made together; None for a call that is refused, or waits, alone."""
        caller = callers.get(credential)
        if caller is None or not declared.visible_to(caller):
            return None
        try:
            given = read(caller)
        except DomainError as refusal:
            return refusal
        except Exception:  # noqa: BLE001  # it is raised again by the call alone
            return None
        return (caller, given) if coalesces.may(given) else None

    credentials = list(dict.fromkeys(credential for credential, _ in calls))
    with credentials[0].acting_with(credentials, lock_timeout=GROUP_PATIENCE) as callers:
        given = [read_one(*call) for call in calls]
        fit = [one for one in given if isinstance(one, tuple)]
        answers = iter(coalesces.run(fit) if fit else ())
        return [next(answers) if isinstance(one, tuple) else one for one in given]


def begin(declared: Operation, caller: BaseCaller, given: BaseModel) -> None:
    """Check a stream before it begins.

    :raises DomainError: whatever the operation refuses of its start.
    """
    if declared.streams:
        with caller.acting():
            declared.streams.begin(caller, given)


def call_with(declared: Operation, caller: BaseCaller, arguments: Any) -> Reply:
    """As :func:`call`, with decoded JSON as arguments; a caller without the scope learns nothing of them."""
    permit(declared, caller)
    return call(declared, caller, parse(declared.input, arguments))
