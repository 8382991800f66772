"""How far the embedder has come."""

from dataclasses import dataclass

from apps.memory import sql
from apps.memory.embedding import embedder


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """Whether recall has the help of vectors, and of how many."""

    named: bool
    """This deployment names an embedder."""
    comparable: bool
    """The database has pgvector."""
    indexed: bool
    """The vectors of this embedder stand in an index."""
    largest: int
    """How many vectors the tenant has that has most of them, where none stands in an index."""
    waiting: int
    """How many memories are not embedded, or not as they read now; counted up to a bound."""
    refused: int
    """How many the embedder refuses as they read now, which are found by their words alone; counted up to a bound."""


def embedding() -> Embedding:
    """How far the embedder has come. Runs as the system."""
    asked = embedder()
    if asked is None:
        return Embedding(named=False, comparable=False, indexed=False, largest=0, waiting=0, refused=0)
    if not sql.has_vectors():
        return Embedding(named=True, comparable=False, indexed=False, largest=0, waiting=0, refused=0)
    indexed, largest, waiting, refused = sql.vectors_held(asked.mark)
    return Embedding(named=True, comparable=True, indexed=indexed, largest=largest, waiting=waiting, refused=refused)
