"""One declaration per operation: the source of the MCP tool, the REST route, OpenAPI and the credential matrix.

An app's `tools.py` declares what it offers::

    @operation(title="Read the inbox", scope="inbox", routes=[Route("GET", "/api/v1/inbox")], read_only=True)
    def read_inbox(caller: Caller, given: ReadInbox) -> InboxPage:
        \"\"\"What an agent reads about this tool.\"\"\"

The function parses nothing and renders nothing: it makes one service call as the caller.
"""

import re
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, Protocol, TypeVar, get_type_hints

from pydantic import BaseModel

from apps.core.errors import DomainError, Forbidden, NotFound
from apps.core.retries import ATTEMPTS, retried
from apps.core.schemas import parse

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

    def acting(self) -> AbstractContextManager[None]:
        """A transaction in which the database shows this caller's tenant and nothing else."""


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
    own_transactions: bool

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
    own_transactions: bool = False,
) -> Callable[[F], F]:
    """Declare an operation.

    :param scope: one scope or several of which any suffices.
    :param output: only where the function answers a :class:`Reply`; else its return annotation says it.
    :param own_transactions: the function opens `caller.acting()` itself, because it waits or calls out.
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
            own_transactions=own_transactions,
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
    """Run an operation as its caller.

    :raises MissingScope: if the caller holds none of its scopes.
    :raises DomainError: whatever the operation refuses.
    """
    permit(declared, caller)
    run = declared.run if declared.own_transactions else partial(_acting, declared)
    # What committed a part of its work and can't be repeated is tried once.
    repeatable = declared.idempotent or not declared.own_transactions
    answer = retried(lambda: run(caller, given), attempts=ATTEMPTS if repeatable else 1)
    return answer if isinstance(answer, Reply) else Reply(answer, status=0)


def _acting(declared: Operation, caller: Acting, given: BaseModel) -> BaseModel | Reply:
    with caller.acting():
        return declared.run(caller, given)


def call_with(declared: Operation, caller: Acting, arguments: Any) -> Reply:
    """As :func:`call`, with decoded JSON as arguments; who may not call learns nothing of them."""
    permit(declared, caller)
    return call(declared, caller, parse(declared.input, arguments))


__all__ = [
    "Acting",
    "DomainError",
    "MissingScope",
    "Operation",
    "Reply",
    "Route",
    "UnknownOperation",
    "all_operations",
    "call",
    "call_with",
    "find",
    "operation",
    "permit",
]
