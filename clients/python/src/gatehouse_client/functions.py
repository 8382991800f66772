"""Functions as tasks: their parameters as a JSON Schema, and a task's params as their arguments."""

import asyncio
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from gatehouse_client.inputs import RegisterTaskType
from gatehouse_client.task import Task

_TYPES: Final = {str: "string", bool: "boolean", int: "integer", float: "number", types.NoneType: "null"}
_LONGEST_TITLE: Final = 200


def as_type(function: Callable[..., Any], **declared: Any) -> RegisterTaskType:
    """The task type of a function: its name, the first line of its docstring, and what its parameters take.

    :param declared: what else the type has, or has instead.
    :raises TypeError: if a parameter can't be given by its name, or JSON has no such type.
    """
    title = (inspect.getdoc(function) or "").partition("\n")[0][:_LONGEST_TITLE]
    if "params_schema" not in declared:
        declared["params_schema"] = _params_schema(function)
    return RegisterTaskType(**{"name": function.__name__, "title": title, **declared})  # type: ignore[typeddict-item]  # the hub checks it


def as_params(function: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The params of a task that calls the function with these arguments.

    :raises TypeError: if they don't fit.
    """
    signature = inspect.signature(function)
    wanted = [one for one in signature.parameters.values() if one.name not in _given_the_task(function)]
    bound = signature.replace(parameters=wanted).bind(*args, **kwargs)
    extra = [bound.arguments.pop(one.name, {}) for one in wanted if one.kind is one.VAR_KEYWORD]
    return {**bound.arguments, **(extra[0] if extra else {})}


def as_handler(function: Callable[..., Any]) -> Callable[[Task], Any]:
    """A handler that calls the function with the task's params.

    A parameter annotated `Task` is given the task. A coroutine function runs in an event loop of its own.
    """
    names = _given_the_task(function)

    def handle(task: Task) -> Any:
        answer = function(**task.params, **dict.fromkeys(names, task))
        return asyncio.run(answer) if inspect.iscoroutine(answer) else answer

    return handle


def _given_the_task(function: Callable[..., Any]) -> list[str]:
    return [name for name, hint in get_type_hints(function).items() if hint is Task and name != "return"]


def _params_schema(function: Callable[..., Any]) -> dict[str, Any]:
    hints, parameters = get_type_hints(function), inspect.signature(function).parameters.values()
    properties: dict[str, Any] = {}
    for one in parameters:
        if one.kind in {one.POSITIONAL_ONLY, one.VAR_POSITIONAL}:
            raise TypeError(f"{one} of {function.__name__} can't be given by its name.")
        if one.kind is not one.VAR_KEYWORD and hints.get(one.name) is not Task:
            schema = _schema(hints.get(one.name, Any))
            properties[one.name] = schema | ({"default": one.default} if type(one.default) in _TYPES else {})
    required = [one.name for one in parameters if one.name in properties and one.default is one.empty]
    open_ended = any(one.kind is one.VAR_KEYWORD for one in parameters)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": open_ended}


def _schema(hint: Any) -> dict[str, Any]:
    """What JSON fits an annotation."""
    if hint is Any or hint is object:
        return {}
    origin, members = get_origin(hint) or hint, get_args(hint)
    if origin in _TYPES:
        return {"type": _TYPES[origin]}
    if origin is Literal:
        return {"enum": list(members)}
    if origin in {Union, types.UnionType}:
        return {"anyOf": [_schema(member) for member in members]}
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _schema(members[1]) if members else True}
    if origin in {list, Sequence}:
        return {"type": "array", "items": _schema(members[0]) if members else {}}
    raise TypeError(f"No JSON is {hint}: annotate the parameter with a type that JSON has, and make yours of it.")
