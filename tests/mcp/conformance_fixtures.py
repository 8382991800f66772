"""The product as a web application, with the tools, resources and prompts that the official conformance suite looks for.

Each method of the product's table is wrapped: a fixture's name is answered here, everything else by the product. The
suite sends no credential, so each request is lent the fixture's token; authentication and permission run as always.
"""

from config.asgi import application  # it loads the apps

# isort: split

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import mcp_types as mcp
from django.conf import settings
from django.core import signing
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import path
from django.utils import timezone

from apps.mcp import tasks
from apps.mcp.asking import Question
from apps.mcp.methods import METHODS as PRODUCT
from apps.mcp.methods import Method
from apps.mcp.protocol import Exchange, Frames, ProtocolError, Streamed
from apps.mcp.views import EndpointView
from tests.executions.making import REPORT, advance, begin
from tests.tasks import making

__all__ = ["application"]

PNG: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
WAV: Final = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
TEXT: Final = "This is the content of the static text resource."

Outcome = mcp.Result | Streamed


def text(*lines: str) -> mcp.CallToolResult:
    return mcp.CallToolResult(content=[mcp.TextContent(text=line) for line in lines])


def embedded(uri: str, content: str, mime_type: str = "text/plain") -> mcp.EmbeddedResource:
    return mcp.EmbeddedResource(resource=mcp.TextResourceContents(uri=uri, mime_type=mime_type, text=content))


def elicit(message: str, **properties: str) -> mcp.ElicitRequest:
    return form(message, {name: {"type": kind} for name, kind in properties.items()})


def form(message: str, properties: Mapping[str, Any]) -> mcp.ElicitRequest:
    schema = {"type": "object", "properties": properties, "required": [*properties]}
    return mcp.ElicitRequest(params=mcp.ElicitRequestFormParams(message=message, requested_schema=schema))


def sample(question: str) -> mcp.CreateMessageRequest:
    message = mcp.SamplingMessage(role="user", content=mcp.TextContent(text=question))
    return mcp.CreateMessageRequest(params=mcp.CreateMessageRequestParams(messages=[message], max_tokens=100))


NAME: Final = elicit("What is your name?", name="string")
CONFIRM: Final = elicit("Please confirm", ok="boolean")


def asks(*, stateful: bool = False, **questions: mcp.InputRequest) -> Callable[[Exchange, Any], Outcome]:
    """A method that needs these answers before it completes; its state is signed."""

    def ask(exchange: Exchange, params: Any) -> Outcome:
        if params.request_state is not None:
            _unseal(params.request_state)
        if set(questions) <= set(params.input_responses or {}):
            return _completed(params)
        state = signing.dumps(sorted(questions)) if stateful else None
        return mcp.InputRequiredResult(input_requests=dict(questions), request_state=state)

    return ask


def _completed(params: Any) -> mcp.Result:
    if isinstance(params, mcp.GetPromptRequestParams):
        return mcp.GetPromptResult(
            messages=[mcp.PromptMessage(role="user", content=mcp.TextContent(text="In this context."))]
        )
    answers = {name: answer.model_dump(mode="json") for name, answer in params.input_responses.items()}
    return text("state-ok", json.dumps(answers))


def _unseal(state: str) -> Any:
    try:
        return signing.loads(state)
    except signing.BadSignature as exc:
        raise ProtocolError(mcp.INVALID_PARAMS, "This state was not made here.") from exc


def in_two_rounds(exchange: Exchange, params: Any) -> Outcome:
    reached = _unseal(params.request_state) if params.request_state else 0
    if f"step{reached}" not in (params.input_responses or {}):
        reached = 0
    if reached == 2:
        return text("Two rounds done.")
    question = elicit("Step 1: What is your name?", name="string") if reached == 0 else elicit("Step 2", color="string")
    return mcp.InputRequiredResult(
        input_requests={f"step{reached + 1}": question}, request_state=signing.dumps(reached + 1)
    )


def within_capabilities(exchange: Exchange, params: Any) -> Outcome:
    questions: dict[str, mcp.InputRequest] = {
        "elicitation": NAME,
        "sampling": sample("What is the capital of France?"),
        "roots": mcp.ListRootsRequest(),
    }
    return mcp.InputRequiredResult(
        input_requests={name: one for name, one in questions.items() if name in exchange.envelope.capabilities}
    )


def needs_sampling(exchange: Exchange, params: Any) -> Outcome:
    if "sampling" not in exchange.envelope.capabilities:
        raise ProtocolError(
            mcp.MISSING_REQUIRED_CLIENT_CAPABILITY,
            "This tool needs sampling.",
            data={"requiredCapabilities": {"sampling": {}}},
        )
    return text("There is sampling.")


def with_progress(exchange: Exchange, params: Any) -> Outcome:
    token = (params.meta or {}).get("progress_token")

    async def frames() -> Frames:
        for done in (0, 50, 100):
            if token is not None:
                yield mcp.ProgressNotification(
                    params=mcp.ProgressNotificationParams(progress_token=token, progress=done, total=100)
                )
            await asyncio.sleep(0.05)
        yield text("Done.")

    return Streamed(frames)


def with_logging(exchange: Exchange, params: Any) -> Outcome:
    wanted = not exchange.envelope.modern or mcp.LOG_LEVEL_META_KEY in (params.meta or {})

    async def frames() -> Frames:
        for line in ("Tool execution started", "Tool processing data", "Tool execution completed"):
            if wanted:
                yield mcp.LoggingMessageNotification(
                    params=mcp.LoggingMessageNotificationParams(level="info", data=line)
                )
            await asyncio.sleep(0.05)
        yield text("Logged.")

    return Streamed(frames)


def asks_on_the_stream(request: mcp.Request[Any, Any]) -> Callable[[Exchange, Any], Outcome]:
    def ask(exchange: Exchange, params: Any) -> Outcome:
        async def frames() -> Frames:
            question = Question(exchange, request)
            async with aclosing(question.asked()) as asked:
                async for sent in asked:
                    yield sent
            yield text(f"The client answers: {question.answer.model_dump_json()}")

        return Streamed(frames)

    return ask


def begins(task_type: str, *, after_name: bool = False) -> Callable[[Exchange, Any], Outcome]:
    """A tool that queues a task; of one that is no use without, a client that knows none is refused."""

    def call(exchange: Exchange, params: Any) -> Outcome:
        given = params.arguments or {}
        if task_type == "slow" and (not tasks.is_declared(exchange) or not given["seconds"]):
            return text("Computed.")
        tasks.require(exchange)
        if after_name and not params.input_responses:
            return mcp.InputRequiredResult(input_requests={"user_name": NAME})
        known = {name: answer.model_dump(mode="json") for name, answer in (params.input_responses or {}).items()}
        due = timezone.now() + timedelta(seconds=given.get("seconds", 0))
        return tasks.begun(exchange, making.queue(exchange.caller, task_type, known, run_at=due).task_id)

    return call


def waits_for(*decisions: str) -> Callable[[Exchange, Any], Outcome]:
    """A tool that begins an execution, which waits for these decisions."""

    def call(exchange: Exchange, params: Any) -> Outcome:
        tasks.require(exchange)
        asked = [{**REPORT, "step_id": name, "decision_required": True, "depends_on": ["report"]} for name in decisions]
        execution = begin(exchange.caller, [REPORT, *asked])
        advance(execution)
        return tasks.begun(exchange, execution.ref)

    return call


def get_task(exchange: Exchange, params: Any) -> Outcome:
    """As the product; before it a worker does what is due."""
    worker = replace(exchange.caller, name="hands", principal_id=int(os.environ["CONFORMANCE_WORKER"]))
    for grant in making.lease(worker, capacity=20):
        match grant.task_type:
            case "fails":
                making.fail(worker, grant, retryable=False)
            case "vanishes":
                assert [making.beat(worker, grant).status for _ in range(2)] == ["ok", "lost"]
            case _:
                making.complete(worker, grant, content=grant.params or {"computed": True})
    return PRODUCT["tasks/get"](exchange, params)


def gives(*content: mcp.ContentBlock, is_error: bool = False) -> Callable[[Exchange, Any], Outcome]:
    return lambda exchange, params: mcp.CallToolResult(content=[*content], is_error=is_error)


DEFAULTS: Final = {
    "name": {"type": "string", "default": "John Doe"},
    "age": {"type": "integer", "default": 30},
    "score": {"type": "number", "default": 95.5},
    "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
    "verified": {"type": "boolean", "default": True},
}
OPTIONS: Final = ["option1", "option2", "option3"]
TITLED: Final = [{"const": f"value{number}", "title": f"Option {number}"} for number in (1, 2, 3)]
ENUMS: Final = {
    "untitledSingle": {"type": "string", "enum": OPTIONS},
    "titledSingle": {"type": "string", "oneOf": TITLED},
    "legacyEnum": {"type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": ["One", "Two", "Three"]},
    "untitledMulti": {"type": "array", "items": {"type": "string", "enum": OPTIONS}},
    "titledMulti": {"type": "array", "items": {"anyOf": TITLED}},
}


TOOLS: Final[Mapping[str, Callable[[Exchange, Any], Outcome]]] = {
    "test_simple_text": gives(mcp.TextContent(text="This is a simple text response for testing.")),
    "test_image_content": gives(mcp.ImageContent(data=PNG, mime_type="image/png")),
    "test_audio_content": gives(mcp.AudioContent(data=WAV, mime_type="audio/wav")),
    "test_embedded_resource": gives(embedded("test://embedded-resource", "This is an embedded resource content.")),
    "test_multiple_content_types": gives(
        mcp.TextContent(text="Multiple content types test:"),
        mcp.ImageContent(data=PNG, mime_type="image/png"),
        embedded("test://mixed-content-resource", '{"test": "data", "value": 123}', "application/json"),
    ),
    "test_error_handling": gives(
        mcp.TextContent(text="This tool intentionally returns an error for testing"), is_error=True
    ),
    "test_tool_with_progress": with_progress,
    "test_tool_with_logging": with_logging,
    "test_logging_tool": with_logging,
    "test_missing_capability": needs_sampling,
    "greet": lambda _, params: text(f"Hello, {params.arguments['name']}!"),
    "slow_compute": begins("slow"),
    "failing_job": begins("fails"),
    "protocol_error_job": begins("vanishes"),
    "test_tool_with_task": begins("slowly", after_name=True),
    "confirm_delete": waits_for("delete"),
    "multi_input": waits_for("one", "other"),
    "test_sampling": asks_on_the_stream(sample("What is the capital of France?")),
    "test_elicitation": asks_on_the_stream(elicit("Who are you?", username="string", email="string")),
    "test_elicitation_sep1034_defaults": asks_on_the_stream(form("Please review", DEFAULTS)),
    "test_elicitation_sep1330_enums": asks_on_the_stream(form("Please choose", ENUMS)),
    "test_streaming_elicitation": asks(user_name=NAME),
    "test_input_required_result_elicitation": asks(user_name=NAME),
    "test_input_required_result_sampling": asks(capital_question=sample("What is the capital of France?")),
    "test_input_required_result_list_roots": asks(client_roots=mcp.ListRootsRequest()),
    "test_input_required_result_request_state": asks(stateful=True, confirm=CONFIRM),
    "test_input_required_result_tampered_state": asks(stateful=True, confirm=CONFIRM),
    "test_input_required_result_multiple_inputs": asks(
        stateful=True, user_name=NAME, greeting=sample("Generate a greeting"), client_roots=mcp.ListRootsRequest()
    ),
    "test_input_required_result_multi_round": in_two_rounds,
    "test_input_required_result_capabilities": within_capabilities,
}


def say(*content: mcp.ContentBlock) -> mcp.GetPromptResult:
    return mcp.GetPromptResult(messages=[mcp.PromptMessage(role="user", content=block) for block in content])


PROMPTS: Final[Mapping[str, tuple[tuple[str, ...], Callable[[Exchange, Any], Outcome]]]] = {
    "test_simple_prompt": ((), lambda _, __: say(mcp.TextContent(text="This is a simple prompt for testing."))),
    "test_prompt_with_arguments": (
        ("arg1", "arg2"),
        lambda _, params: say(
            mcp.TextContent(text="Prompt with arguments: arg1='{arg1}', arg2='{arg2}'".format_map(params.arguments))
        ),
    ),
    "test_prompt_with_embedded_resource": (
        ("resourceUri",),
        lambda _, params: say(
            embedded(params.arguments["resourceUri"], "Embedded resource content for testing."),
            mcp.TextContent(text="Please process the embedded resource above."),
        ),
    ),
    "test_prompt_with_image": (
        (),
        lambda _, __: say(
            mcp.ImageContent(data=PNG, mime_type="image/png"), mcp.TextContent(text="Please analyze the image above.")
        ),
    ),
    "test_input_required_result_prompt": (
        (),
        asks(user_context=elicit("What context should the prompt use?", context="string")),
    ),
}


def list_tools(exchange: Exchange, params: Any) -> Outcome:
    product = PRODUCT["tools/list"](exchange, params)
    assert isinstance(product, mcp.ListToolsResult)
    schema = {"type": "object", "properties": {}}
    fixtures = [mcp.Tool(name=name, description="A fixture.", input_schema=schema) for name in TOOLS]
    return product.model_copy(update={"tools": [*product.tools, *fixtures]})


def call_tool(exchange: Exchange, params: Any) -> Outcome:
    return TOOLS.get(params.name, PRODUCT["tools/call"])(exchange, params)


def list_prompts(exchange: Exchange, params: Any) -> Outcome:
    product = PRODUCT["prompts/list"](exchange, params)
    assert isinstance(product, mcp.ListPromptsResult)
    fixtures = [
        mcp.Prompt(
            name=name,
            description="A fixture.",
            arguments=[mcp.PromptArgument(name=one, required=True) for one in asked],
        )
        for name, (asked, _) in PROMPTS.items()
    ]
    return product.model_copy(update={"prompts": [*product.prompts, *fixtures]})


def get_prompt(exchange: Exchange, params: Any) -> Outcome:
    return (
        PROMPTS[params.name][1](exchange, params)
        if params.name in PROMPTS
        else PRODUCT["prompts/get"](exchange, params)
    )


def list_resources(exchange: Exchange, params: Any) -> Outcome:
    product = PRODUCT["resources/list"](exchange, params)
    assert isinstance(product, mcp.ListResourcesResult)
    fixtures = [
        mcp.Resource(uri=uri, name=uri, description="A fixture.", mime_type=mime_type)
        for uri, mime_type in (("test://static-text", "text/plain"), ("test://static-binary", "image/png"))
    ]
    return product.model_copy(update={"resources": [*product.resources, *fixtures]})


def list_templates(exchange: Exchange, params: Any) -> Outcome:
    product = PRODUCT["resources/templates/list"](exchange, params)
    assert isinstance(product, mcp.ListResourceTemplatesResult)
    fixture = mcp.ResourceTemplate(uri_template="test://template/{id}/data", name="template", description="A fixture.")
    return product.model_copy(update={"resource_templates": [*product.resource_templates, fixture]})


def read_resource(exchange: Exchange, params: Any) -> Outcome:
    match params.uri.removeprefix("test://").split("/"):
        case ["static-text"] | ["watched-resource"]:
            return mcp.ReadResourceResult(
                contents=[mcp.TextResourceContents(uri=params.uri, mime_type="text/plain", text=TEXT)]
            )
        case ["static-binary"]:
            return mcp.ReadResourceResult(
                contents=[mcp.BlobResourceContents(uri=params.uri, mime_type="image/png", blob=PNG)]
            )
        case ["template", number, "data"]:
            content = json.dumps({"id": number, "templateTest": True, "data": f"Data for ID: {number}"})
            return mcp.ReadResourceResult(
                contents=[mcp.TextResourceContents(uri=params.uri, mime_type="application/json", text=content)]
            )
        case _:
            return PRODUCT["resources/read"](exchange, params)


def watch(exchange: Exchange, params: Any) -> Outcome:
    return (
        PRODUCT["ping"](exchange, params)
        if params.uri.startswith("test://")
        else PRODUCT["resources/subscribe"](exchange, params)
    )


def complete(exchange: Exchange, params: Any) -> Outcome:
    ours = getattr(params.ref, "name", "") in PROMPTS
    ref = params.ref.model_copy(update={"name": "delegate"}) if ours else params.ref
    argument = params.argument.model_copy(update={"name": "intent"}) if ours else params.argument
    return PRODUCT["completion/complete"](exchange, params.model_copy(update={"ref": ref, "argument": argument}))


METHODS: Final[Mapping[str, Method]] = {
    **PRODUCT,
    "tools/list": list_tools,
    "tools/call": call_tool,
    "tasks/get": get_task,
    "prompts/list": list_prompts,
    "prompts/get": get_prompt,
    "resources/list": list_resources,
    "resources/templates/list": list_templates,
    "resources/read": read_resource,
    "resources/subscribe": watch,
    "resources/unsubscribe": watch,
    "completion/complete": complete,
}

_endpoint = EndpointView.as_view(methods=METHODS)


def lend_token(request: HttpRequest) -> HttpResponseBase:
    """The endpoint, with the fixture's token for a request without a credential."""
    request.META.setdefault("HTTP_AUTHORIZATION", f"Bearer {os.environ['CONFORMANCE_TOKEN']}")
    return _endpoint(request)


urlpatterns = [path("mcp", lend_token)]
settings.ROOT_URLCONF = __name__
