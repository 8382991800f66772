"""Operations on memory."""

from apps.memory.tools import memories, sessions, subjects

__all__ = ["memories", "sessions", "subjects"]
