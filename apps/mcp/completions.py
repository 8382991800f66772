"""Completion of a resource's variables from what the caller can see."""

from typing import Any, Final

from mcp_types import INVALID_PARAMS, CompleteRequestParams, CompleteResult, Completion, PromptReference

from apps.core.errors import DomainError
from apps.mcp import prompts, resources
from apps.mcp.protocol import Exchange, ProtocolError
from apps.mcp.resources import Completions
from apps.principals.tenancy import Caller

_MOST: Final = 100


def complete(exchange: Exchange, params: CompleteRequestParams) -> CompleteResult:
    """Values that begin with what was typed. Prompts take free text, for which there is nothing to offer.

    :raises ProtocolError: if there is no such prompt, template or variable.
    """
    if isinstance(params.ref, PromptReference):
        habit = prompts.named(params.ref.name)
        known = [name for name, _ in habit.required]
        source = None
    else:
        address = _address(params.ref.uri)
        known = list(address.template.variable_names)
        source = address.completions
    if params.argument.name not in known:
        raise ProtocolError(INVALID_PARAMS, f"Unknown argument: {params.argument.name[:100]}")
    values = _values(exchange.caller, source) if source else []
    fitting = [value for value in values if value.startswith(params.argument.value)]
    return CompleteResult(
        completion=Completion(values=fitting[:_MOST], total=len(fitting), has_more=len(fitting) > _MOST)
    )


def _address(uri: str) -> resources.Address:
    for address in resources.ADDRESSES:
        if address.uri == uri:
            return address
    raise ProtocolError(INVALID_PARAMS, f"Unknown resource template: {uri[:100]}")


def _values(caller: Caller, source: Completions) -> list[str]:
    """The first page of what a list holds; nothing if the caller may not read it."""
    found = resources.reader(source.route)
    if found is None:
        return []
    try:
        content: Any = resources.read_with(found, caller, {})
    except DomainError:
        return []
    return [str(item[source.value]) for item in content.get(source.items, []) if source.value in item]
