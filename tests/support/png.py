"""Reads the pixels of a PNG."""

import io

from PIL import Image

Rgba = tuple[int, int, int, int]
Pixels = list[list[Rgba]]


def decode(png: bytes) -> Pixels:
    """The rows of a PNG."""
    with Image.open(io.BytesIO(png)) as image:
        content = image.convert("RGBA").tobytes()
        width, height = image.size
    pixels: list[Rgba] = [(*content[at : at + 4],) for at in range(0, len(content), 4)]
    return [pixels[row * width : (row + 1) * width] for row in range(height)]
