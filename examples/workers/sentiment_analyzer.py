"""sentiment-analyzer: judges by TextBlob's lexicon whether an English text is positive, negative or neutral.

It needs no model and no download.

Run it: `python examples/workers/sentiment_analyzer.py --port 8806`
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import anyio.to_thread
from pydantic import BaseModel, Field
from worker_kit import Worker, refused

MAX_TEXT: Final = 100_000
NEUTRAL: Final = 0.05

worker = Worker(
    worker_id="sentiment-analyzer",
    description="Analyzes the sentiment of English text.",
    capabilities=["sentiment_analysis", "sentiment", "nlp", "text_processing", "english"],
    constraints={"max_payload_bytes": 1_048_576, "timeout_seconds": 30, "rate_limit_per_hour": 36_000},
    hints={"latency_band": "fast", "cost_band": "free", "expected_runtime": "fast"},
    side_effects={"filesystem": "none", "network": "none", "execution": "none"},
    capacity=8,
)


class Sentiment(BaseModel):
    """How a text sounds."""

    sentiment: Literal["positive", "negative", "neutral"]
    confidence: float = Field(description="0 to 1: how far the words lean the way that is named.")
    polarity: float = Field(description="-1 (negative) to 1 (positive).")
    subjectivity: float = Field(description="0 (facts) to 1 (opinion).")
    keywords: list[str] = Field(description="The words that it was judged by, the weightiest first.")
    summary: str


@worker.tool(title="Analyze sentiment")
async def analyze_sentiment(
    text: Annotated[str, Field(min_length=1, max_length=MAX_TEXT)], language: str = "english"
) -> Sentiment:
    """Analyze the sentiment of a text: positive, negative or neutral, with the words that say so.

    `text` is the text itself; `language` is english.
    """
    if language.strip().lower() not in {"english", "en", "en-us", "en-gb"}:
        raise refused("unknown_language", f"language {language[:40]!r} is not supported: this worker reads english")
    return await anyio.to_thread.run_sync(judged, text)


def judged(text: str) -> Sentiment:
    """Return the judgement of TextBlob's lexicon."""
    from textblob import TextBlob  # noqa: PLC0415 - takes half a second, which the worker's start need not wait for

    polarity, subjectivity, assessments = TextBlob(text).sentiment_assessments
    found: Literal["positive", "negative", "neutral"] = "neutral"
    if abs(polarity) >= NEUTRAL:
        found = "positive" if polarity > 0 else "negative"
    lean = min(1.0, abs(polarity))
    confidence = round(0.5 + lean / 2 if found != "neutral" else 1 - lean / 2, 2)
    weighty = sorted(assessments, key=lambda one: (-abs(one[1]), one[0]))
    words = [" ".join(word for word in one[0] if word[:1].isalnum()) for one in weighty if one[1]]
    return Sentiment(
        sentiment=found,
        confidence=confidence,
        polarity=round(polarity, 3),
        subjectivity=round(subjectivity, 3),
        keywords=list(dict.fromkeys(word for word in words if word))[:20],
        summary=f"{found.capitalize()} ({confidence:.2f})",
    )


if __name__ == "__main__":
    worker.main()
