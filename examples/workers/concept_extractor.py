"""concept-extractor: finds the key concepts of documents with YAKE, which needs no model and no download.

The documents come as the index of a PDF indexer, by its result pointer or as a value, or as plain text.

Run it: `python examples/workers/concept_extractor.py --port 8805`
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from typing import Annotated, Any, Final

import anyio
import anyio.to_thread
from mcp.server.mcpserver import Context
from pydantic import BaseModel, Field
from worker_kit import Pointer, Worker, refused, resolve

MAX_DOCUMENTS: Final = 2_000
MAX_DOCUMENT: Final = 200_000
MAX_SECONDS: Final = 240.0
# The extraction is pure Python: several at once would only take turns.
ONE_AT_A_TIME: Final = anyio.CapacityLimiter(1)

worker = Worker(
    worker_id="concept-extractor",
    description="Extracts the key concepts of indexed documents.",
    capabilities=["concepts", "concept_extraction", "keywords", "nlp", "text_processing", "documents"],
    constraints={"max_payload_bytes": 4_000_000, "timeout_seconds": 300, "rate_limit_per_hour": 3_600},
    hints={"latency_band": "medium", "cost_band": "low", "expected_runtime": "medium"},
    side_effects={"filesystem": "none", "network": "outbound", "execution": "none"},
    capacity=2,
)


class Document(BaseModel):
    path: Annotated[str, Field(max_length=4_096)] = "text"
    text: str


class Documents(BaseModel):
    documents: Annotated[list[Document], Field(max_length=MAX_DOCUMENTS)]


class Concept(BaseModel):
    name: str
    relevance: float = Field(description="0 to 1, against the first one.")
    documents: list[str] = Field(description="Where it is a key concept, at most ten.")


class Concepts(BaseModel):
    """The key concepts of all documents together."""

    summary: str
    concepts: list[Concept]
    concepts_total: int
    documents_read: int
    complete: bool = Field(description="False when a limit cut documents or their text.")


@worker.tool(title="Extract key concepts", open_world=True)
async def extract_concepts(
    index_pointer: Pointer, ctx: Context[Any, Any], max_concepts: Annotated[int, Field(ge=1, le=500)] = 50
) -> Concepts:
    """Extract the key concepts from an index of documents.

    Finds the terms that the documents are about, the most relevant first, with the documents that they stand in.
    `index_pointer` is the result pointer of the index, the index, or `{text: ...}`.
    """
    if isinstance(index_pointer, dict) and isinstance(index_pointer.get("text"), str):
        index_pointer = {"documents": [index_pointer]}
    documents = (await resolve(index_pointer, Documents, code="not_an_index")).documents
    if not any(one.text.strip() for one in documents):
        raise refused("nothing_to_do", "The documents hold no text")
    weights: defaultdict[str, float] = defaultdict(float)
    places: defaultdict[str, list[str]] = defaultdict(list)
    names: dict[str, str] = {}
    began, read = anyio.current_time(), 0
    for document in documents:
        if anyio.current_time() - began > MAX_SECONDS:
            break
        found = await anyio.to_thread.run_sync(key_concepts, document.text[:MAX_DOCUMENT], limiter=ONE_AT_A_TIME)
        for name, weight in found:
            key = name.casefold()
            names.setdefault(key, name)
            weights[key] += weight
            places[key].append(document.path)
        read += 1
        await ctx.report_progress(read, len(documents), f"{read} of {len(documents)} documents read")
    ranked = sorted(weights, key=lambda key: (-weights[key], key))
    concepts = [
        Concept(name=names[key], relevance=round(weights[key] / weights[ranked[0]], 3), documents=places[key][:10])
        for key in ranked[:max_concepts]
    ]
    return Concepts(
        summary=f"{len(ranked)} concepts in {read} documents: {', '.join(one.name for one in concepts[:5])}",
        concepts=concepts,
        concepts_total=len(ranked),
        documents_read=read,
        complete=read == len(documents) and all(len(one.text) <= MAX_DOCUMENT for one in documents),
    )


def key_concepts(text: str) -> list[tuple[str, float]]:
    """Return a document's key concepts with their weights: the first counts whole, the second half, and so on."""
    from yake import KeywordExtractor  # noqa: PLC0415 - takes half a second, which the worker's start need not wait for

    found = []
    for rank, (name, _) in enumerate(KeywordExtractor(lan="en", n=3, top=40).extract_keywords(text), start=1):
        times = len(re.findall(rf"\b{re.escape(name)}\b", text, re.IGNORECASE)) or 1
        found.append((name, (1 + math.log(times)) / rank))
    return found


if __name__ == "__main__":
    worker.main()
