"""concept-extractor: finds the key concepts of documents.

Each document is ranked by YAKE, which weighs words by where and how they stand; no model, no download. The documents
come as the index of a PDF indexer, by its result pointer or as a value, or as plain text.

Run it: `python examples/workers/concept_extractor.py --port 8805`
"""

from __future__ import annotations

import math
import re
import sys
from collections import defaultdict
from typing import Annotated, Any, Final

import anyio
import anyio.to_thread
from hub_pointers import resolve, unwrapped
from mcp.server.mcpserver import Context
from pydantic import BaseModel, Field, ValidationError
from worker_kit import Worker, refused

MAX_DOCUMENTS: Final = 2_000
MAX_DOCUMENT: Final = 200_000
MAX_TOTAL: Final = 4_000_000
MAX_SECONDS: Final = 240.0
CANDIDATES: Final = 40
LONGEST_CONCEPT: Final = 3
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
    """What this worker reads of a document; its name is optional."""

    path: Annotated[str, Field(max_length=4_096)] = "text"
    text: str


class Documents(BaseModel):
    documents: Annotated[list[Document], Field(max_length=MAX_DOCUMENTS)]


class Concept(BaseModel):
    name: str
    relevance: float = Field(description="0 to 1, against the first one.")
    occurrences: int
    documents: list[str] = Field(description="Where it is a key concept, at most ten.")


class Concepts(BaseModel):
    """The key concepts of all documents together."""

    summary: str
    concepts: list[Concept]
    concepts_total: int
    documents_read: int
    complete: bool = Field(description="False when a limit cut documents or their text.")


Pointer = Annotated[
    str | dict[str, Any],
    Field(
        description="Result pointer of a document index (artifact:... or inline:...), the index itself, or `{text: ...}`."
    ),
]


@worker.tool(title="Extract key concepts", open_world=True)
async def extract_concepts(
    index_pointer: Pointer, ctx: Context[Any, Any], max_concepts: Annotated[int, Field(ge=1, le=500)] = 50
) -> Concepts:
    """Extract the key concepts from an index of documents.

    Finds the terms that the documents are about, the most relevant first, with the documents that they stand in.
    `index_pointer` is the result pointer of the index, or the index.
    """
    given = index_pointer if isinstance(index_pointer, dict) else await resolve(index_pointer)
    documents = parsed(given)
    if not any(one.text.strip() for one in documents):
        raise refused("nothing_to_do", "The documents hold no text")
    counted = Counted()
    began = anyio.current_time()
    for done, document in enumerate(documents, start=1):
        await anyio.to_thread.run_sync(counted.add, document, limiter=ONE_AT_A_TIME)
        await ctx.report_progress(done, len(documents), f"{done} of {len(documents)} documents read")
        if counted.size >= MAX_TOTAL or anyio.current_time() - began > MAX_SECONDS:
            counted.complete = counted.complete and done == len(documents)
            break
    return counted.result(max_concepts)


def parsed(given: Any) -> list[Document]:
    """Return the documents in an index, or the one that is given as text.

    :raises ToolError: `not_an_index`.
    """
    if isinstance(given, dict) and isinstance(given.get("text"), str):
        given = {"documents": [given]}
    try:
        return Documents.model_validate(unwrapped(given, "documents")).documents
    except ValidationError as refusal:
        first = refusal.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "document"
        raise refused("not_an_index", f"This is no index of documents: {where}: {first['msg']}") from None


class Counted:
    """Concepts as they add up, document by document."""

    def __init__(self) -> None:
        from yake import KeywordExtractor  # noqa: PLC0415 - takes half a second, which the worker's start need not wait for

        self._extractor = KeywordExtractor(lan="en", n=LONGEST_CONCEPT, top=CANDIDATES)
        self._weights: defaultdict[str, float] = defaultdict(float)
        self._occurrences: defaultdict[str, int] = defaultdict(int)
        self._places: defaultdict[str, list[str]] = defaultdict(list)
        self._names: dict[str, str] = {}
        self.size = self.read = 0
        self.complete = True

    def add(self, document: Document) -> None:
        """Add a document's own key concepts: the first counts whole, the second half, and so on; often said counts more."""
        text = document.text[: min(MAX_DOCUMENT, MAX_TOTAL - self.size)]
        self.complete = self.complete and len(text) == len(document.text)
        self.size += len(text)
        self.read += 1
        for rank, (name, _) in enumerate(self._extractor.extract_keywords(text), start=1):
            key = name.casefold()
            self._names.setdefault(key, name)
            times = len(re.findall(rf"\b{re.escape(name)}\b", text, re.IGNORECASE)) or 1
            self._weights[key] += (1 + math.log(times)) / rank
            self._occurrences[key] += times
            self._places[key].append(document.path)

    def result(self, most: int) -> Concepts:
        ranked = sorted(self._weights, key=lambda key: (-self._weights[key], key))
        heaviest = self._weights[ranked[0]] if ranked else 1.0
        concepts = [
            Concept(
                name=self._names[key],
                relevance=round(self._weights[key] / heaviest, 3),
                occurrences=self._occurrences[key],
                documents=self._places[key][:10],
            )
            for key in ranked[:most]
        ]
        of = "1 document" if self.read == 1 else f"{self.read} documents"
        named = ", ".join(concept.name for concept in concepts[:5])
        return Concepts(
            summary=f"{len(ranked)} concepts in {of}" + (f": {named}" if named else ""),
            concepts=concepts,
            concepts_total=len(ranked),
            documents_read=self.read,
            complete=self.complete,
        )


if __name__ == "__main__":
    sys.exit(worker.main())
