"""Tools, proposals and plans for the tests of plans: what a proposer would find is said by hand."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from apps.plans import documents, proposals, services, shelf
from apps.plans.assembling import assemble
from apps.plans.catalogue import Catalogue, Tool
from apps.plans.documents import Step
from apps.plans.language_model import MOST_TOOLS, Unusable, proposal
from apps.plans.local.index import Library
from apps.plans.models import Plan
from apps.plans.proposals import Asked, Evidence, Proposal, Value
from apps.plans.shapes import CreatePlan, PlanConstraints
from apps.principals.tenancy import Caller
from apps.workers import services as registry
from apps.workers.shapes import OfferView as Offer
from apps.workers.trust import Tier
from tests.factories import T0
from tests.workers.factories import NOTHING, enroll, make_key, make_manifest, signed

STRING = {"type": "string"}
STRINGS = {"type": "array", "items": STRING}
INTEGER = {"type": "integer"}
NUMBER = {"type": "number"}


def shape(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def tool(name: str, description: str, takes: Mapping[str, Any], gives: Mapping[str, Any] | None = None) -> Tool:
    uid = hashlib.blake2b(f"{name}{description}".encode(), digest_size=16).hexdigest()
    return Tool(uid=uid, name=name, description=description, input_schema=takes, output_schema=gives or {})


def offer(worker_id: str, of: Tool, *capabilities: str, effects: Iterable[str] = (), **more: Any) -> Offer:
    found: dict[str, Any] = {"expected_runtime": "fast", "tier": "verified", **more}
    return Offer(worker_id=worker_id, tool_uid=of.uid, capabilities=capabilities, effects=frozenset(effects), **found)


ANALYZE = tool(
    "analyze_repository",
    "Analyze a Python codebase or repository at a path. Measures complexity and maintainability, finds issues.",
    shape("repo_path", repo_path=STRING, language={"type": "string", "default": "python"}),
    shape(complexity_score=NUMBER, issues={"type": "array"}, summary=STRING),
)
SUGGEST = tool(
    "suggest_optimizations",
    "Suggest optimizations, ranked by impact, from the analysis of a codebase.",
    shape("analysis_pointer", analysis_pointer={"anyOf": [STRING, {"type": "object"}]}),
    shape(suggestions={"type": "array"}, summary=STRING),
)
SENTIMENT = tool(
    "analyze_sentiment",
    "Analyze the sentiment of a text.",
    shape("text", text=STRING, language={"type": "string", "default": "english"}),
    shape(sentiment=STRING, confidence=NUMBER, keywords=STRINGS),
)
SCAN = tool(
    "scan_directory",
    "List the files in a directory.",
    shape("path", path=STRING, file_types=STRINGS),
    shape(files=STRINGS, files_found=INTEGER),
)
INDEX = tool(
    "index_pdfs",
    "Index PDF documents for search.",
    shape("files", files=STRINGS),
    shape(index_pointer=STRING, pages=INTEGER),
)
EXTRACT = tool(
    "extract_concepts",
    "Extract key concepts from an index of documents.",
    shape("index_pointer", index_pointer=STRING, max_concepts={"type": "integer", "minimum": 1}),
    shape(concepts=STRINGS),
)
TRANSLATE = tool(
    "translate_text",
    "Translate a text into another language.",
    shape("text", "target_language", text=STRING, target_language=STRING),
    shape(text=STRING),
)
PAGE = tool(
    "fetch_webpage",
    "Fetch a web page and return its readable text.",
    shape("url", url={"type": "string", "format": "uri"}),
    shape(text=STRING, title=STRING),
)
TRANSCRIBE = tool(
    "transcribe_audio",
    "Transcribe speech in an audio recording.",
    shape("audio_path", audio_path=STRING),
    shape(transcript=STRING, seconds=NUMBER),
)
RESIZE = tool(
    "resize_image",
    "Resize an image to a width in pixels.",
    shape("image_path", "width", image_path=STRING, width=INTEGER),
    shape(image_pointer=STRING),
)
MAIL = tool(
    "send_email",
    "Send an email to a recipient.",
    shape("recipient", "body", recipient={"type": "string", "format": "email"}, body=STRING),
    shape(message_id=STRING),
)
REMOVE = tool("delete_file", "Delete one file.", shape("path", path=STRING), shape(deleted={"type": "boolean"}))

EXAMPLE_TOOLS = (ANALYZE, SUGGEST, SENTIMENT, SCAN, INDEX, EXTRACT)
EXAMPLE_OFFERS = (
    offer("code-analyzer-001", ANALYZE, "code_analysis", "python", effects=["read"], expected_runtime="long"),
    offer("optimization-suggester-002", SUGGEST, "optimization", effects=["network"]),
    offer("sentiment-analyzer-001", SENTIMENT, "sentiment_analysis", "nlp"),
    offer("file-scanner-001", SCAN, "files", effects=["read"]),
    offer("pdf-indexer-002", INDEX, "pdf", "indexing", effects=["read"], expected_runtime="long"),
    offer("concept-extractor-003", EXTRACT, "concepts", "nlp", expected_runtime="long"),
)
MORE_TOOLS = (TRANSLATE, PAGE, TRANSCRIBE, RESIZE, MAIL, REMOVE)
MORE_OFFERS = (
    offer("polyglot", TRANSLATE, "translation", cost=0.01),
    offer("polyglot-2", TRANSLATE, "translation", cost=0.5),
    offer("browser", PAGE, "web", effects=["network"]),
    offer("scribe", TRANSCRIBE, "speech", effects=["read"], expected_runtime="medium"),
    offer("darkroom", RESIZE, "images", effects=["read"]),
    offer("postman", MAIL, "email", effects=["network"]),
    offer("janitor", REMOVE, "files", effects=["write"], barred="the tier verified does not allow write"),
)
OFFERS = EXAMPLE_OFFERS + MORE_OFFERS
FULL = Catalogue(7, EXAMPLE_TOOLS + MORE_TOOLS, OFFERS)
UNBARRED = Catalogue(8, FULL.tools, tuple(replace(one, barred=None) for one in OFFERS))


FLAGSHIP = "Analyze the Python codebase at /path/to/repo and suggest optimizations"


ASKED = Asked(intent=FLAGSHIP, now=datetime(2026, 1, 3, 22, tzinfo=UTC), delegation_path=("above", "here"))


def value_of(given: Any) -> Value:
    """A value as it would be proposed: the result of an earlier step, or quoted in the request."""
    if isinstance(given, Value):
        return given
    cited = isinstance(given, str) and given.startswith("{{")
    return Value(value=given, evidence=Evidence.STEP if cited else Evidence.QUOTED)


def call(of: Tool, /, part: int | None = 0, **params: Any) -> Step:
    values = {name: value_of(one) for name, one in params.items()}
    return proposals.call(1, of, values, ASKED, clause=part, confidence=0.9)


def make_proposal(*steps: Step, **more: Any) -> Proposal:
    numbered = [step.model_copy(update={"step_id": f"step-{number}"}) for number, step in enumerate(steps, 1)]
    return Proposal(**{"proposer": "local", "steps": numbered, "confidence": 0.9, **more})


def assembled(proposal: Proposal, catalogue: Catalogue = FULL, **constraints: Any) -> documents.Plan:
    """What is made of a proposal."""
    head: dict[str, Any] = {"plan_id": "plan-1", "delegate_id": "delegate", "principal_ai": "Kee", "intent": FLAGSHIP}
    head |= {"created_at": "2026-01-03T22:00:00Z", "delegation_path": ["above"], "references": {}}
    bounds = PlanConstraints.model_validate(constraints)
    return assemble(proposal, catalogue, intent=FLAGSHIP, head=head, constraints=bounds)


def make_plan(*steps: Step, catalogue: Catalogue = FULL, **proposal: Any) -> documents.Plan:
    """What is assembled from these steps, by default those of the example."""
    return assembled(make_proposal(*(steps or flagship()), **proposal), catalogue)


def flagship() -> tuple[Step, ...]:
    """Two steps, of which one is queued and the other takes its result."""
    return call(ANALYZE, repo_path="/path/to/repo"), call(SUGGEST, 1, analysis_pointer="{{step-1.result_pointer}}")


def translation(text: str = "good morning") -> Step:
    return call(TRANSLATE, text=text, target_language="French")


def register_example_workers(caller: Caller) -> None:
    """The two workers of the example, signed by a key that may grant `verified`."""
    key = make_key()
    enroll(caller, key, Tier.VERIFIED)
    for worker_id, tool, effects, runtime in (
        ("code-analyzer-001", ANALYZE, {**NOTHING, "filesystem": "read"}, "long"),
        ("optimization-suggester-002", SUGGEST, {**NOTHING, "network": "outbound"}, "fast"),
    ):
        offered = {"name": tool.name, "description": tool.description}
        schemas = {"input_schema": tool.input_schema, "output_schema": tool.output_schema}
        hints = {"expected_runtime": runtime, "cost_band": "low"}
        manifest = make_manifest(worker_id, tools=[{**offered, **schemas}], side_effects=effects, hints=hints)
        registry.register(caller=caller, original=signed(manifest, key))


PLAIN = ("inspect_alder", "inspect_birch", "inspect_cedar", "inspect_maple")


def register_plain_tools(caller: Caller, worker_id: str = "plain", names: Iterable[str] = PLAIN) -> dict[str, str]:
    """Tools that change nothing; their uids by name."""
    schemas = {
        "input_schema": {"type": "object", "properties": {"query": {"type": "string"}}},
        "output_schema": {"type": "object", "properties": {}},
    }
    tools = [{"name": name, "description": f"Does {name.partition('_')[2]}.", **schemas} for name in names]
    registered = registry.register(caller=caller, original=make_manifest(worker_id, tools=tools, side_effects=NOTHING))
    return {tool.name: tool.uid for tool in registered.tools}


def create(
    caller: Caller,
    *calls: tuple[str, Mapping[str, Any]],
    intent: str = FLAGSHIP,
    proposal: Mapping[str, Any] | None = None,
    **request: Any,
) -> Plan:
    """A stored plan of calls of registered tools, by default those of the example.

    :param calls: the name of a tool and its params.
    :param proposal: members of the proposal.
    """
    calls = calls or (
        ("analyze_repository", {"repo_path": "/path/to/repo"}),
        ("suggest_optimizations", {"analysis_pointer": "{{step-1.result_pointer}}"}),
    )
    with shelf.held(tenant_id=caller.tenant_id) as held:
        tools = {tool.name: tool for tool in held.catalogue.tools}
    unknown = Tool(uid="0" * 32, name="unknown", description="", input_schema={}, output_schema={})
    steps = [call(tools.get(name, unknown), place, **params) for place, (name, params) in enumerate(calls)]
    given = CreatePlan.model_validate({"intent": intent, **request})
    return services.create_plan(caller=caller, given=given, now=T0, proposed=make_proposal(*steps, **(proposal or {})))


def scripted(told: Mapping[str, Mapping[str, Any]], asked: Asked, library: Library) -> Proposal | None:
    """What such a model proposes; None: nothing that can be used.

    :param told: by the text of a request, the request whose plan is answered, as in `sets`.
    """
    tools = library.shown(asked.intent, asked.now, MOST_TOOLS)[:MOST_TOOLS]
    ids = {tool.name: f"t{place}" for place, tool in enumerate(tools, 1)}
    wanted = told[asked.intent].get("steps", ())
    places = {one["tool"]: place for place, one in enumerate(wanted, 1)}
    steps = [
        {"tool": ids.get(one["tool"]), "params": {name: written(value, places) for name, value in one["args"].items()}}
        for one in wanted
    ]
    try:
        return proposal(json.dumps({"steps": steps, "missing": [], "refusal": None}), asked, tools)
    except Unusable:
        return None


def written(value: Any, places: Mapping[str, int]) -> Any:
    """An expected value as a model writes it: the first of several, and a result as a reference to its step."""
    match value:
        case {"any": [*choices]}:
            return written(next(one for one in choices if one is not None), places)
        case {"ref": tool_name}:
            return f"{{{{step-{places[tool_name]}.text}}}}"
        case _:
            return value
