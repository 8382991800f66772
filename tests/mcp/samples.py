"""Operations that exist while a test runs: what the product's own need not show, and the endpoint must bear."""

from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import Field

from apps.core import operations
from apps.core.errors import NotFound, RateLimited
from apps.core.operations import Reply, Route, operation
from apps.core.schemas import Input, Output, Text
from apps.principals.tenancy import Caller


class Leaf(Input):
    """One of several."""

    name: Text
    """What it is called."""


class Shapes(Input):
    leaf: Leaf
    """A leaf."""
    other: Leaf | None = None
    title: Text | None = None
    """A member that is called as a keyword of JSON Schema is."""
    options: dict[str, str] = Field(default_factory=dict)


class Echo(Output):
    said: str | None = None


class Say(Input):
    text: Text
    """What to say."""


class Ref(Input):
    ref: Text


@contextmanager
def samples() -> Iterator[None]:
    before = dict(operations._registry)
    operations._registry.pop("get_entry")  # one of the samples stands at its address
    _declare_those_that_answer()
    _declare_those_that_fail()
    try:
        yield
    finally:
        operations._registry.clear()
        operations._registry.update(before)


def _declare_those_that_answer() -> None:
    @operation(title="Say", scope="memory", routes=[Route("POST", "/api/v1/say", max_body=2_000)], listed_for=["agent"])
    def sample_say(caller: Caller, given: Say) -> Echo:
        """Say something again."""
        return Echo(said=given.text)

    @operation(title="Shapes")
    def sample_shapes(caller: Caller, given: Shapes) -> Echo:
        """Take every shape."""
        return Echo()

    @operation(title="Nothing", output=Echo)
    def sample_nothing(caller: Caller, given: Say) -> Reply:
        """Find nothing."""
        return Reply(None, 204)

    @operation(title="Entry", scope="inbox", routes=[Route("GET", "/api/v1/inbox/entries/{ref}")], read_only=True)
    def get_entry(caller: Caller, given: Ref) -> Echo:
        """Read an entry."""
        if given.ref == "ent_404":
            raise NotFound("There is no entry ent_404.")
        return Echo(said=given.ref)


def _declare_those_that_fail() -> None:
    @operation(title="Break")
    def sample_break(caller: Caller, given: Say) -> Echo:
        """Break."""
        raise ZeroDivisionError("a secret of the house")

    @operation(title="Wait")
    def sample_wait(caller: Caller, given: Say) -> Echo:
        """Refuse for a while."""
        raise RateLimited("Too many.", retry_after=3)
