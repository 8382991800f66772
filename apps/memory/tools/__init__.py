"""Operations on memory."""

from apps.memory.tools import concepts, observations, patterns, promotions, recalling, sessions, starting

__all__ = ["concepts", "observations", "patterns", "promotions", "recalling", "sessions", "starting"]
