"""Images as bytes: every input type is read, checked and named in the same way."""

from __future__ import annotations

from contextlib import suppress
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from vision_models import picture

from agentrl.utils import images
from agentrl.utils.images import ImageError, content_hash, data_url, ending, of_data_url, open_image, read_image


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "a red one.png"
    path.write_bytes(picture())
    return path


def test_every_way_to_give_an_image(file, monkeypatch):
    monkeypatch.chdir(file.parent)
    url = data_url(picture())
    ways = [
        *(picture(), bytearray(picture()), memoryview(picture()), file, str(file), file.name, file.as_uri(), url),
        *({"bytes": picture(), "path": None}, {"bytes": None, "path": str(file)}, {"image": url}, {"url": url}),
        {"type": "image_url", "image_url": {"url": url}},
    ]
    assert [content_hash(read_image(way)) for way in ways] == [content_hash(picture())] * len(ways)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP"])
def test_known_formats_stay_as_they_are(kind):
    data = picture(kind=kind)
    assert read_image(data) == data
    assert ending(data) in images.TYPES
    assert data_url(data).startswith(f"data:{images.TYPES[ending(data)]};base64,")


def test_other_formats_and_pictures_in_memory_become_png():
    other, drawn = read_image(picture(kind="TIFF")), read_image(Image.open(BytesIO(picture())))
    assert (ending(other), ending(drawn)) == ("png", "png")
    assert open_image(other).tobytes() == open_image(drawn).tobytes() == open_image(picture()).tobytes()
    # equal images get equal names
    assert read_image(Image.new("RGBA", (3, 3))) == read_image(Image.new("RGBA", (3, 3)))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"", "its 0 bytes are not an image of a known format"),
        (b"PNG", "its 3 bytes are not an image of a known format"),
        (picture()[:70], "it cannot be decoded|not an image of a known format"),
        ("nowhere.png", "cannot read 'nowhere.png': No such file"),
        ("file:///nowhere/x.png", "cannot read '/nowhere/x.png': No such file"),
        (".", "'.' is not a file"),
        ("/dev/zero", "'/dev/zero' is not a file"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n", "are not an image of a known format"),
        ("a\0b", "cannot read"),
        ("https://x.org/y.png", "'https://x.org/y.png' is an address: download the file"),
        ("data:image/png;base64,%%%", "its data URL is damaged"),
        ("data:", "expected a data URL, got 'data:'"),
        ({}, "expected an object with bytes, path, image or url"),
        (3, "expected bytes, a path, a data URL or a Pillow image, got int"),
        (None, "got NoneType"),
    ],
)
def test_invalid_image_bytes_are_refused(value, expected):
    with pytest.raises(ImageError, match=expected):
        read_image(value)


def test_images_have_a_largest_size(monkeypatch, file):
    monkeypatch.setattr(images, "MAX_PIXELS", 599)
    for value in (picture(), Image.new("RGB", (30, 20))):
        with pytest.raises(ImageError, match="it is 30 x 20 pixels large, at most 599 are read"):
            read_image(value)
    monkeypatch.setattr(images, "MAX_BYTES", 10)
    for value in (picture(), file):
        with pytest.raises(ImageError, match="bytes, at most 10 are read"):
            read_image(value)


def test_a_palette_with_transparency_is_read_without_a_warning():
    buffer = BytesIO()
    Image.linear_gradient("L").convert("P").save(buffer, "PNG", transparency=b"\x00\x10\x20")
    assert open_image(buffer.getvalue()).mode == "RGB"


def test_a_bomb_is_refused_before_it_is_decoded():
    data = bytearray(picture(kind="BMP"))
    data[18:26] = (100_000).to_bytes(4, "little") * 2
    with pytest.raises(ImageError):
        read_image(bytes(data))


@given(st.binary(max_size=300))
def test_data_url_round_trip(data):
    assert of_data_url(data_url(data)) == data


@given(
    st.one_of(st.binary(max_size=200), st.text(max_size=60), st.binary(max_size=80).map(lambda tail: picture() + tail))
)
def test_invalid_images_raise_only_image_errors(value):
    with suppress(ImageError):
        assert open_image(read_image(value)).size
