"""Images as bytes: reading from rows and tools, validation, and naming by content hash."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_BYTES = 32 * 2**20
MAX_PIXELS = 2**25
"""Maximum width times height. A larger image is a mistake, or an attempt to exhaust memory."""

TYPES = {"png": "image/png", "jpg": "image/jpeg", "gif": "image/gif", "webp": "image/webp", "bmp": "image/bmp"}
"""Formats that are kept unchanged: file ending -> media type. Other formats are converted to PNG."""
_SIGNATURES = ((b"\x89PNG", "png"), (b"\xff\xd8\xff", "jpg"), (b"GIF8", "gif"), (b"BM", "bmp"))
_FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "ICO", "TGA", "PCX", "JPEG2000")
"""Pillow's names of the formats that are decoded. Others are excluded: in EPS files, Pillow would execute PostScript
code."""
_DATA_URL = re.compile(r"data:(?P<type>[\w.+/-]*)(?P<base64>;base64)?,(?P<data>.*)", re.DOTALL)


class ImageError(Exception):
    """An invalid image. The caller adds the name of the row or tool to the message."""


def content_hash(data: bytes) -> str:
    """Return the name of an image: the SHA-256 of its bytes, 64 hexadecimal digits."""
    return sha256(data).hexdigest()


def ending(data: bytes) -> str:
    """Return the file ending for these bytes: one of `TYPES`, or `bin` if unknown."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    return next((name for signature, name in _SIGNATURES if data.startswith(signature)), "bin")


@lru_cache(maxsize=64)  # a conversation sends its images again with every turn
def data_url(data: bytes) -> str:
    """Return the image as `data:image/png;base64,...`."""
    return f"data:{TYPES.get(ending(data), 'application/octet-stream')};base64,{base64.b64encode(data).decode()}"


def of_data_url(url: str) -> bytes:
    """Return the bytes of a data URL.

    Raises:
        ImageError: the text is not a data URL, or is damaged.
    """
    match = _DATA_URL.fullmatch(url)
    if match is None:
        raise ImageError(f"expected a data URL, got {url[:40]!r}")
    try:
        data = match["data"]
        return base64.b64decode(data, validate=True) if match["base64"] else unquote(data).encode("latin-1")
    except (binascii.Error, UnicodeEncodeError) as error:
        raise ImageError(f"its data URL is damaged: {error}") from error


def open_image(data: bytes) -> Image:
    """Decode an image to RGB.

    Raises:
        ImageError: the image cannot be decoded, or exceeds `MAX_BYTES` or `MAX_PIXELS`.
    """
    from PIL import Image, UnidentifiedImageError  # slow to import, and only runs with images need it

    bombs = (Image.DecompressionBombError, Image.DecompressionBombWarning)
    if len(data) > MAX_BYTES:
        raise ImageError(f"it has {len(data)} bytes, at most {MAX_BYTES} are read")
    try:
        image = Image.open(BytesIO(data), formats=_FORMATS)
        width, height = image.size
        if width * height > MAX_PIXELS:  # checked before decoding
            raise ImageError(f"it is {width} x {height} pixels large, at most {MAX_PIXELS} are read")
        # Pillow warns if a palette with transparency is converted directly to RGB
        return (image.convert("RGBA") if "transparency" in image.info else image).convert("RGB")
    except UnidentifiedImageError as error:
        raise ImageError(f"its {len(data)} bytes are not an image of a known format") from error
    except (OSError, SyntaxError, ValueError, EOFError, *bombs) as error:
        raise ImageError(f"it cannot be decoded: {' '.join(str(error).split())[:100]}") from error


def read_image(value: object) -> bytes:
    """Return the bytes of an image. The image is decoded once, as a check.

    Args:
        value: bytes; a file's path, a `file:` or `data:` URL; an object with `bytes`, `path`, `image`, `url` or
            `image_url`, as in datasets and messages; or a Pillow image.

    Raises:
        ImageError: the value has another type, or the image is missing, damaged or too large.
    """
    if isinstance(value, Mapping):
        return read_image(_given(value))
    data = _bytes(value)
    image = open_image(data)
    return data if ending(data) in TYPES else _as_png(image)


def _given(value: Mapping[object, object]) -> object:
    for key in ("bytes", "image", "image_url", "url", "path"):
        if value.get(key) is not None:
            return value[key]
    raise ImageError("expected an object with bytes, path, image or url")


def _bytes(value: object) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, Path):
        return _of_file(value)
    if isinstance(value, str):
        return _of_text(value)
    if callable(getattr(value, "save", None)) and hasattr(value, "mode"):
        return _as_png(value)  # type: ignore[arg-type]  # duck typing, so that Pillow need not be imported
    raise ImageError(f"expected bytes, a path, a data URL or a Pillow image, got {type(value).__name__}")


def _of_text(text: str) -> bytes:
    if text.startswith("data:"):
        return of_data_url(text)
    if text.startswith(("http://", "https://")):
        raise ImageError(f"'{text[:100]}' is an address: download the file and give its path")
    return _of_file(Path(unquote(urlsplit(text).path) if text.startswith("file:") else text).expanduser())


def _of_file(path: Path) -> bytes:
    try:
        status = path.stat()
        if not S_ISREG(status.st_mode):  # a device or a pipe may never end
            raise ImageError(f"'{path}' is not a file")
        if status.st_size > MAX_BYTES:
            raise ImageError(f"'{path}' has {status.st_size} bytes, at most {MAX_BYTES} are read")
        return path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a null character
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ImageError(f"cannot read '{str(path)[:200]}': {reason}") from error


def _as_png(image: Image) -> bytes:
    buffer = BytesIO()
    try:
        if image.width * image.height > MAX_PIXELS:
            raise ImageError(f"it is {image.width} x {image.height} pixels large, at most {MAX_PIXELS} are read")
        image.convert("RGB").save(buffer, format="PNG")
    except (OSError, ValueError, AttributeError) as error:
        raise ImageError(f"it cannot be written as PNG: {' '.join(str(error).split())[:100]}") from error
    return buffer.getvalue()


def small_picture() -> bytes:
    """Return a fixed image for testing a model."""
    from PIL import Image

    return _as_png(Image.linear_gradient("L").resize((96, 64)).rotate(30))
