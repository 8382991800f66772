"""JSON that the database can hold and a prompt can carry.

Python's decoder accepts what PostgreSQL refuses (NUL), what UTF-8 can't encode (lone surrogates) and what
no JSON is (NaN). Here each is refused by name, with a pointer to where it stands.

What was taken once is taken again: the database gives numbers back digit by digit (1e20 as 100000000000000000000).
"""

import hashlib
import json
import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final, Never

import rfc8785

from apps.core.errors import FieldError, Invalid, Malformed, pointer_to

MAX_DEPTH: Final = 32
_MAX_INTEGER: Final = 2**63
_EXACT_IN_A_DOUBLE: Final = 2**53
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
    """A text of others with what could not be stored replaced."""
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
    """Decode a body without a look at what its texts hold.

    :raises NotJSON: if it is not UTF-8 encoded JSON, or writes a key twice.
    :raises UnstorableJSON: if it writes NaN, or is nested too deeply to decode.
    """
    try:
        return json.loads(body.decode(), parse_constant=_no_constant, object_pairs_hook=_unique)
    except UnicodeDecodeError as exc:
        raise NotJSON("The body is not UTF-8.") from exc
    except RecursionError as exc:
        raise UnstorableJSON(f"The body is nested deeper than {MAX_DEPTH} levels.") from exc
    except ValueError as exc:
        raise NotJSON(f"The body is not JSON: {exc}") from exc


def check(document: Any, *, pointer: str = "") -> None:
    """Refuse what can't be stored: NUL, lone surrogates, NaN, integers over 64 bits unless they are doubles written out,
    doubles of 1e64 and above or nearer to zero than 1e-64, more than 32 levels.

    :raises UnstorableJSON: naming the place.
    """
    # Where something stands is found out only where something is wrong.
    if not _is_sound(document, MAX_DEPTH):
        _refuse_first(document, pointer, depth=0)


def _is_sound(document: Any, levels: int) -> bool:
    if isinstance(document, str):
        return _is_text(document)
    if isinstance(document, dict | list):
        return levels > 0 and _holds_what_is_sound(document, levels - 1)
    return not isinstance(document, int | float) or _is_number(document)


def _holds_what_is_sound(container: dict[str, Any] | list[Any], levels: int) -> bool:
    if isinstance(container, list):
        return all(_is_sound(value, levels) for value in container)
    return all(_is_text(key) and _is_sound(value, levels) for key, value in container.items())


def _is_number(number: float) -> bool:
    if isinstance(number, int):
        return -_MAX_INTEGER <= number < _MAX_INTEGER or _is_a_double(number)
    return not number or _SMALLEST <= abs(number) < _LARGEST  # neither of which NaN is


def _is_text(text: str) -> bool:
    if "\x00" in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse_first(document: Any, pointer: str, *, depth: int) -> None:
    match document:
        case dict() | list():
            if depth >= MAX_DEPTH:
                _refuse(pointer, f"is nested deeper than {MAX_DEPTH} levels")
            for key, value in _members(document, pointer):
                _refuse_first(value, pointer + pointer_to(key), depth=depth + 1)
        case str():
            _check_text(document, pointer)
        case int() | float():
            _check_number(document, pointer)
        case _:
            pass  # null, true and false can always be stored


def size(document: Any) -> int:
    """Bytes of a document, written without spaces."""
    return len(json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode())


def digest(document: Any) -> bytes:
    """SHA-256 over the canonical form (RFC 8785) of a document, 32 bytes."""
    form = _plain_form(document).encode() if _is_plain(document) else rfc8785.dumps(_canonical(document))
    return hashlib.sha256(form).digest()


# What Python's own encoder, which is many times as fast, writes in the canonical form.
_plain_form: Final = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, sort_keys=True, separators=(",", ":")
).encode


def _is_plain(document: Any) -> bool:
    """Whether it holds neither numbers that RFC 8785 writes in its own way, nor keys that it sorts in its own order."""
    if document is None or isinstance(document, str | bool):
        return True
    if isinstance(document, int):
        return -_EXACT_IN_A_DOUBLE < document < _EXACT_IN_A_DOUBLE
    if isinstance(document, dict):
        return all(isinstance(key, str) and key.isascii() and _is_plain(value) for key, value in document.items())
    return isinstance(document, list | tuple) and all(_is_plain(value) for value in document)


def _canonical(document: Any) -> Any:
    """RFC 8785 knows doubles only: larger integers are written as text, so that they stay apart."""
    match document:
        case dict():
            return {key: _canonical(value) for key, value in document.items()}
        case list() | tuple():
            return [_canonical(value) for value in document]
        case int() if abs(document) >= _EXACT_IN_A_DOUBLE:
            return f"int:{document}"
        case _:
            return document


def _members(document: dict[str, Any] | list[Any], pointer: str) -> Iterator[tuple[str, Any]]:
    """What a container holds, each under its key or index."""
    if isinstance(document, list):
        yield from ((str(index), value) for index, value in enumerate(document))
        return
    for key, value in document.items():
        _check_text(key, pointer)
        yield key, value


def _check_number(number: float, pointer: str) -> None:
    if _is_number(number):
        return
    if isinstance(number, int):
        _refuse(pointer, "does not fit 64 bits")
    _refuse(pointer, "is not between 1e-64 and 1e64" if math.isfinite(number) else "is not a finite number")


def _is_a_double(number: int) -> bool:
    """Whether this is a double's shortest form, written without its exponent."""
    return abs(number) < _LARGEST and Decimal(repr(float(number))) == number


def _check_text(text: str, pointer: str) -> None:
    if not _is_text(text):
        _refuse(pointer, "holds a NUL character" if "\x00" in text else "holds a lone surrogate")


def _refuse(pointer: str, fault: str) -> Never:
    raise UnstorableJSON(f"The value at {pointer or '/'!r} {fault}.", errors=[FieldError(pointer, fault)])


def _no_constant(name: str) -> Never:
    raise UnstorableJSON(f"{name} is not a JSON number.")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise NotJSON("The body writes a key twice.")
    return members
