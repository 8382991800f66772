"""Whether a statement says anything that another does not say already. Pure."""

from typing import Final

from apps.core.lexical import stem, words

# Of all the words of both, the share that they have in common from which on they say the same.
_SAME: Final = 0.7


def says_the_same(text: str, other: str) -> bool:
    """Whether two statements have nearly all of their words in common, in whatever form and order."""
    ours, theirs = _stems(text), _stems(other)
    together = ours | theirs
    return bool(together) and len(ours & theirs) >= _SAME * len(together)


def _stems(text: str) -> set[str]:
    return {stem(word) for word in words(text)}
