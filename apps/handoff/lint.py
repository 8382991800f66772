"""The gratitude test: would the next session thank for this item? Warnings, by simple signs; the author decides."""

import re
from typing import Final

from apps.handoff import tokens
from apps.handoff.items import Kind

TOO_LONG: Final = 400

HARVEST: Final = """\
◈ HARVEST
Learning: what do you know now that the next session would have to find out again?
Caution: what goes wrong, and under which condition?
Context: what that you loaded will be needed again, and for which work? Only if that work goes on.
Thread: what is unfinished, where does it stand, and what is the very next step?
Would the next session thank you for it? If not, leave nothing: an empty inbox is a good one.
"""

_NEXT_STEP: Final = re.compile(
    r"\b(next|resum\w*|continu\w*|then|todo|to do|remain\w*|pick up|start with|run|finish|needs?|needed|must|should)\b",
    re.IGNORECASE,
)
_CONDITION: Final = re.compile(
    r"\b(if|when\w*|while|until|unless|before|after|during|without|never|always|only|must|required?|as long as)\b",
    re.IGNORECASE,
)
_CONTINUATION: Final = re.compile(
    r"\b(next|applies|apply|needed|again|continu\w*|when|if|before|will)\b", re.IGNORECASE
)
_NOTES: Final = re.compile(
    r"\s*(#+\s*)?(session (notes|summary|log)|(notes|summary|log)\b|today\b|(in )?this session\b|(i|we) (did|worked|spent|had)\b)",
    re.IGNORECASE,
)
_ASKED: Final = {
    Kind.THREAD: (_NEXT_STEP, "a thread without a next step: say what to do first"),
    Kind.CAUTION: (_CONDITION, "a caution without a condition: say when it applies"),
    Kind.CONTEXT: (_CONTINUATION, "a context without a continuation: say for which work it will be needed"),
}


def warnings(kind: Kind, body: str) -> list[str]:
    """What speaks against leaving this."""
    found = []
    if (cost := tokens.estimate(body)) > TOO_LONG:
        found.append(f"about {cost} tokens; over {TOO_LONG} the next session pays more than it gains")
    if kind in _ASKED and not _ASKED[kind][0].search(body):
        found.append(_ASKED[kind][1])
    if _NOTES.match(body):
        found.append("reads like notes of a session, which belong into the session's own file")
    return found
