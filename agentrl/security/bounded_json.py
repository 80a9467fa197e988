"""Parse HTTP answers from other machines, with limits on size, nesting depth and digits of a number."""

from __future__ import annotations

import json
import zlib
from collections.abc import AsyncIterator, Callable
from typing import NoReturn

import orjson
from pydantic import JsonValue

MAX_BYTES = 32 * 2**20
"""Maximum bytes of an answer after decompression."""
MAX_DEPTH = 64
"""Maximum nesting depth of lists and objects."""
MAX_DIGITS = 300
"""Maximum number of digits of an integer; a longer integer may not fit into a float."""


class UnreadableAnswerError(ValueError):
    """An answer that is too large or invalid; the text is one line with the reason."""


async def read_body(chunks: AsyncIterator[bytes], encoding: str | None, max_bytes: int = MAX_BYTES) -> bytes:
    """Read and decompress the body of an answer. Memory use is about `max_bytes` at most; the caller sets the timeout.

    Args:
        chunks: the body as received, possibly compressed.
        encoding: the header Content-Encoding.

    Raises:
        UnreadableAnswerError: the body is too large, has an unknown encoding, or cannot be decompressed.
    """
    unpack, body = _unpacker(encoding), bytearray()
    async for chunk in chunks:
        body += unpack(chunk, max_bytes + 1 - len(body))
        if len(body) > max_bytes:
            raise UnreadableAnswerError(f"an answer of more than {max_bytes / 2**20:g} MiB")
    return bytes(body)


def _unpacker(encoding: str | None) -> Callable[[bytes, int], bytes]:
    """Return a function (chunk, maximum number of bytes) -> decompressed bytes.

    Only one layer of compression is removed, because each layer may multiply the size by up to 1,000.
    """
    name = (encoding or "identity").strip().lower()
    if name == "identity":
        return lambda chunk, _: chunk
    if name not in ("gzip", "x-gzip", "deflate"):
        raise UnreadableAnswerError(f"an answer in the encoding {name[:40]!r}, expected gzip or none")
    unpacking = zlib.decompressobj(zlib.MAX_WBITS | 32)

    def unpack(chunk: bytes, most: int) -> bytes:
        try:
            return unpacking.decompress(chunk, most)
        except zlib.error as error:
            raise UnreadableAnswerError(f"an answer that cannot be unpacked: {error}") from None

    return unpack


def read_text(body: bytes) -> str:
    """Decode `body` as UTF-8; the character set in the header is ignored."""
    return body.decode("utf-8", "replace")


def read_json(text: str | bytes) -> JsonValue:
    """Parse `text` as JSON.

    Raises:
        UnreadableAnswerError: the text is not JSON, contains NaN or an integer of more than 300 digits, or is nested
            more than 64 levels deep.
    """
    value = _parsed(text)
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for each in level
            if isinstance(each, _NESTED)
            for item in (each.values() if isinstance(each, dict) else each)
            if isinstance(item, _NESTED)
        ]
        if not level:
            return value
    raise UnreadableAnswerError("JSON that is nested too deeply")


def _parsed(text: str | bytes) -> JsonValue:
    body = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if _LONG_NUMBER not in body.translate(_DIGITS_AS_ZERO):
        try:
            value: JsonValue = orjson.loads(body)
        except orjson.JSONDecodeError:
            pass  # the standard library accepts more, such as half a surrogate pair, and has clearer errors
        else:
            return value
    return _slowly_parsed(text)


def _slowly_parsed(text: str | bytes) -> JsonValue:
    try:
        value: JsonValue = _DECODER.decode(text if isinstance(text, str) else read_text(text))
    except UnreadableAnswerError:
        raise
    except RecursionError:
        raise UnreadableAnswerError("JSON that is nested too deeply") from None
    except ValueError as error:
        raise UnreadableAnswerError(f"not JSON: {error}") from None
    return value


def _whole_number(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise UnreadableAnswerError(f"JSON with a number of {len(digits)} digits")
    return int(digits)


def _refused(name: str) -> NoReturn:
    raise UnreadableAnswerError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_int=_whole_number, parse_constant=_refused)
_NESTED = (dict, list)  # evaluated once: `dict | list` would be evaluated for every value
_DIGITS_AS_ZERO = bytes(48 if 48 <= byte < 58 else 32 for byte in range(256))
_LONG_NUMBER = b"0" * 19
"""orjson may round an integer with this many digits to a float; the standard library keeps the integer exact."""
