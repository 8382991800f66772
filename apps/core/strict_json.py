"""JSON that the database can hold and a prompt can carry.

Python's decoder accepts what PostgreSQL refuses (NUL), what UTF-8 can't encode (lone surrogates) and what JSON does not
have (NaN). Here each is refused by name, with a pointer to its place. A stored document is always accepted again: the
database writes numbers digit by digit (1e20 as 100000000000000000000).
"""

import hashlib
import json
import math
from decimal import Decimal
from typing import Any, Final, Never

from apps.core.errors import FieldError, Invalid, Malformed, pointer_to

MAX_DEPTH: Final = 32
_MAX_INTEGER: Final = 2**63
# Numbers with an exponent beyond these take hundreds of digits.
_LARGEST: Final = 10**64
_SMALLEST: Final = 1e-64


class NotJSON(Malformed):
    """The body is not JSON."""

    code = "malformed_json"


class UnstorableJSON(Invalid):
    """The document is JSON, but holds something that can't be stored."""

    code = "unstorable_json"


def storable(text: str) -> str:
    """A foreign text, with each character replaced that could not be stored."""
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()


def loads(body: bytes) -> Any:
    """Decode a body and check it.

    :raises NotJSON: as :func:`decode`.
    :raises UnstorableJSON: as :func:`check`.
    """
    document = decode(body)
    check(document)
    return document


def decode(body: bytes) -> Any:
    """Decode a body without a check of its texts and numbers.

    :raises NotJSON: if it is not UTF-8 encoded JSON, or writes a key twice.
    :raises UnstorableJSON: if it writes NaN, or is nested too deeply to decode.
    """
    try:
        return _DECODER.decode(body.decode())
    except UnicodeDecodeError as exc:
        raise NotJSON("The body is not UTF-8.") from exc
    except RecursionError as exc:
        raise UnstorableJSON(f"The body is nested deeper than {MAX_DEPTH} levels.") from exc
    except ValueError as exc:
        raise NotJSON(f"The body is not JSON: {exc}") from exc


class _Fault(Exception):  # becomes an UnstorableJSON
    """What can't be stored, and its place from the inside out."""

    def __init__(self, message: str) -> None:
        self.message = message
        self.place: list[str | int] = []


def check(document: Any, *, pointer: str = "") -> None:
    """Refuse what can't be stored: NUL, lone surrogates, NaN, integers over 64 bits unless they are doubles written out,
    doubles of 1e64 and above or nearer to zero than 1e-64, more than 32 levels.

    :raises UnstorableJSON: naming the place.
    """
    try:
        _check(document, MAX_DEPTH)
    except _Fault as fault:
        pointer += pointer_to(*reversed(fault.place))
        error = FieldError(pointer, fault.message)
        raise UnstorableJSON(f"The value at {pointer or '/'!r} {fault.message}.", errors=[error]) from None


def _check(document: Any, levels: int) -> None:
    if isinstance(document, str):
        _check_text(document)
    elif isinstance(document, dict | list):
        if not levels:
            raise _Fault(f"is nested deeper than {MAX_DEPTH} levels")
        for key, value in document.items() if isinstance(document, dict) else enumerate(document):
            if isinstance(key, str):
                _check_text(key)
            try:
                _check(value, levels - 1)
            except _Fault as fault:
                fault.place.append(key)
                raise
    elif isinstance(document, float):
        if document and not _SMALLEST <= abs(document) < _LARGEST:  # nor is NaN
            raise _Fault("is not between 1e-64 and 1e64" if math.isfinite(document) else "is not a finite number")
    elif isinstance(document, int) and not (-_MAX_INTEGER <= document < _MAX_INTEGER or _is_a_double(document)):
        raise _Fault("does not fit 64 bits")


def _is_a_double(number: int) -> bool:
    """Whether this is a double's shortest form, written without its exponent."""
    return abs(number) < _LARGEST and Decimal(repr(float(number))) == number


def _check_text(text: str) -> None:
    if "\x00" in text:
        raise _Fault("holds a NUL character")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise _Fault("holds a lone surrogate") from None


def size(document: Any) -> int:
    """Bytes of a document, written without spaces."""
    return len(json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode())


def digest(document: Any) -> bytes:
    """SHA-256 over one form of a document, 32 bytes: whether it is the same as before, whatever the order of its keys."""
    return hashlib.sha256(_one_form(document).encode()).digest()


_one_form: Final = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, sort_keys=True, separators=(",", ":")
).encode


def _no_constant(name: str) -> Never:
    raise UnstorableJSON(f"{name} is not a JSON number.")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise NotJSON("The body writes a key twice.")
    return members


# `json.loads` would make one for each document.
_DECODER: Final = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=_unique)
