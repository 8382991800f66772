"""The types of work whose handlers are part of this product, by name. Filled by `handlers`, read by services."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Params = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a handler declares about its type."""

    task_type: str
    params_schema: Mapping[str, Any]
    queue: str
    title: str
    priority: int
    lease_seconds: int
    heartbeat_seconds: int | None
    deadline_seconds: int | None
    max_attempts: int
    max_expiries: int
    backoff_seconds: float
    backoff_cap_seconds: float
    alias: Callable[[str, Params], Params | None] | None = field(default=None, repr=False)
    """Reads another type name as this one: its params as this type's, or None if it is not meant."""


_policies: Final[dict[str, Policy]] = {}


def register(policy: Policy) -> None:
    """:raises ValueError: if the type has a handler already."""
    if policy.task_type in _policies:
        raise ValueError(f"The task type {policy.task_type!r} has two handlers.")
    _policies[policy.task_type] = policy


def policy_of(task_type: str) -> Policy | None:
    """What a type's handler declares; None where no handler of the product does it."""
    return _policies.get(task_type)


def names() -> list[str]:
    """The types that have handlers."""
    return sorted(_policies)


def unalias(task_type: str, params: Params) -> tuple[str, Params]:
    """The type and params that a request means: itself, unless a handler reads the name as its own."""
    if task_type in _policies:
        return task_type, params
    for policy in _policies.values():
        if policy.alias is not None and (meant := policy.alias(task_type, params)) is not None:
            return policy.task_type, meant
    return task_type, params
