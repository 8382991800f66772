"""A registry of realistic tools for the planner's tests, as catalogue values: no database is needed to plan."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from apps.plans.catalogue import Catalogue, Tool
from apps.plans.documents import Plan
from apps.plans.planner import Request, plan
from apps.plans.ranking import Ranker
from apps.workers.shapes import OfferView as Offer

STRING = {"type": "string"}
STRINGS = {"type": "array", "items": STRING}
INTEGER = {"type": "integer"}
NUMBER = {"type": "number"}


def shape(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def tool(name: str, description: str, takes: Mapping[str, Any], gives: Mapping[str, Any]) -> Tool:
    uid = hashlib.blake2b(f"{name}{description}".encode(), digest_size=16).hexdigest()
    return Tool(uid=uid, name=name, description=description, input_schema=takes, output_schema=gives)


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
OCR = tool(
    "read_image_text", "Read the text in an image by OCR.", shape("image_path", image_path=STRING), shape(text=STRING)
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
WEB = tool(
    "search_web",
    "Search the web for a query.",
    shape("query", query=STRING, max_results={"type": "integer", "default": 10}),
    shape(urls=STRINGS),
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
TESTS = tool("run_tests", "Run the tests of a project.", shape("repo_path", repo_path=STRING), shape(failures=INTEGER))
LICENSES = tool(
    "check_licenses",
    "Check the licenses of a repository's dependencies.",
    shape("repo_path", repo_path=STRING),
    shape(licenses=STRINGS),
)

EXAMPLE_TOOLS = (ANALYZE, SUGGEST, SENTIMENT, SCAN, INDEX, EXTRACT)
EXAMPLE_OFFERS = (
    offer("code-analyzer-001", ANALYZE, "code_analysis", "python", effects=["read"], expected_runtime="long"),
    offer("optimization-suggester-002", SUGGEST, "optimization", effects=["network"]),
    offer("sentiment-analyzer-001", SENTIMENT, "sentiment_analysis", "nlp"),
    offer("file-scanner-001", SCAN, "files", effects=["read"]),
    offer("pdf-indexer-002", INDEX, "pdf", "indexing", effects=["read"], expected_runtime="long"),
    offer("concept-extractor-003", EXTRACT, "concepts", "nlp", expected_runtime="long"),
)
MORE_TOOLS = (OCR, TRANSLATE, PAGE, WEB, TRANSCRIBE, RESIZE, MAIL, REMOVE, TESTS, LICENSES)
MORE_OFFERS = (
    offer("reader", OCR, "ocr", effects=["read"]),
    offer("polyglot", TRANSLATE, "translation", cost=0.01),
    offer("polyglot-2", TRANSLATE, "translation", cost=0.5),
    offer("browser", PAGE, "web", effects=["network"]),
    offer("browser", WEB, "web", "search", effects=["network"]),
    offer("scribe", TRANSCRIBE, "speech", effects=["read"], expected_runtime="medium"),
    offer("darkroom", RESIZE, "images", effects=["read"]),
    offer("postman", MAIL, "email", effects=["network"]),
    offer("janitor", REMOVE, "files", effects=["write"], barred="the tier verified does not allow write"),
    offer("runner", TESTS, "testing", effects=["exec"], barred="the tier verified does not allow exec"),
    offer("lawyer", LICENSES, "licenses", effects=["read"]),
)
EXAMPLE = Catalogue(3, EXAMPLE_TOOLS, EXAMPLE_OFFERS)
FULL = Catalogue(7, EXAMPLE_TOOLS + MORE_TOOLS, EXAMPLE_OFFERS + MORE_OFFERS)
UNBARRED = Catalogue(8, FULL.tools, tuple(replace(one, barred=None) for one in FULL.offers))


@cache
def ranker(catalogue: Catalogue) -> Ranker:
    return Ranker(catalogue)


def make_request(intent: str, **more: Any) -> Request:
    return Request(
        plan_id="plan-1",
        delegate_id="delegate",
        principal_ai="Kee",
        intent=intent,
        created_at="2026-01-03T22:00:00Z",
        **more,
    )


def make_plan(intent: str, catalogue: Catalogue = FULL, **more: Any) -> Plan:
    return plan(make_request(intent, **more), ranker(catalogue))
