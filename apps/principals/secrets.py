"""The form of a token: `ght_<prefix>_<secret>`, of which the database keeps the prefix and a digest.

Other products' texts, which operators hand to us, are tokens too; of these the database keeps the digest alone.
"""

import hashlib
import re
import secrets
from dataclasses import dataclass, field
from typing import Final

_FORM: Final = re.compile(r"ght_([0-9a-f]{8})_([A-Za-z0-9_-]{43})", re.ASCII)

_FOREIGN_FORM: Final = re.compile(r"(?!ght_)[!-~]{32,200}", re.ASCII)
# Fewer than in any thirty-two hexadecimal digits that were drawn at random, all but once in millions.
_FEWEST_CHARACTERS: Final = 8


@dataclass(frozen=True, slots=True)
class Secret:
    """A token's text. Shown once; 256 bits of randomness need no slow hash."""

    text: str = field(repr=False)

    @property
    def prefix(self) -> str:
        """What may be shown of it: nothing of a text that is not ours."""
        return self.text[4:12] if self.text.startswith("ght_") else ""

    @property
    def digest(self) -> bytes:
        """SHA-256, 32 bytes."""
        return hashlib.sha256(self.text.encode()).digest()


def new_secret() -> Secret:
    """A fresh token text."""
    return Secret(f"ght_{secrets.token_hex(4)}_{secrets.token_urlsafe(32)}")


def read_secret(text: str) -> Secret | None:
    """The secret in a header's value, or None if it has not the form of one."""
    return Secret(text) if _FORM.fullmatch(text) or _FOREIGN_FORM.fullmatch(text) else None


def given_secret(text: str) -> Secret | None:
    """The secret in a text that somebody has chosen, or None if it is too short or too plain to be one."""
    return read_secret(text) if len(set(text)) >= _FEWEST_CHARACTERS else None
