"""Draws the pictures that the page of pictures begins with where no benchmark's files are: digits and others, by hand.

    python studies/draw_pictures.py

Each is a few strokes of a pen, or a few filled shapes, so that nobody's licence is needed. As in MNIST they have
28 x 28 grey values, lie in the middle 20 and have their centre of mass in the middle."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from stmaml.border.arrays import pack_arrays
from stmaml.border.writing import write_bytes
from stmaml.serving.pixels import DRAWN, SIDE

FINE = 16  # times finer while drawing
INNER = 20
PEN = 2.5  # pixels

Strokes = list[list[tuple[float, float]]]
# Places of the pen from 0 to 1, to the right and down; a smooth line goes through those of a stroke.
GLYPHS: dict[str, Strokes] = {
    "two": [
        [(0.14, 0.24), (0.3, 0.05), (0.6, 0.02), (0.74, 0.2), (0.6, 0.5), (0.34, 0.76), (0.1, 0.97)],
        [(0.1, 0.97), (0.34, 0.91), (0.6, 0.96), (0.88, 0.92)],
    ],
    "three": [
        [(0.16, 0.12), (0.4, 0.0), (0.7, 0.06), (0.72, 0.28), (0.42, 0.46)],
        [(0.42, 0.46), (0.7, 0.5), (0.82, 0.72), (0.6, 0.96), (0.3, 1.0), (0.08, 0.88)],
    ],
    "four": [
        [(0.3, 0.02), (0.22, 0.3), (0.14, 0.54), (0.4, 0.58), (0.84, 0.52)],
        [(0.72, 0.06), (0.66, 0.5), (0.6, 1.0)],
    ],
    "five": [
        [(0.8, 0.02), (0.5, 0.05), (0.3, 0.07)],
        [(0.3, 0.07), (0.26, 0.26), (0.22, 0.45)],
        [(0.22, 0.45), (0.5, 0.38), (0.76, 0.5), (0.78, 0.78), (0.5, 0.98), (0.14, 0.93)],
    ],
    "seven": [
        [(0.1, 0.1), (0.4, 0.08), (0.84, 0.06)],
        [(0.84, 0.06), (0.66, 0.36), (0.52, 0.66), (0.42, 1.0)],
        [(0.32, 0.52), (0.54, 0.5), (0.76, 0.5)],
    ],
    "eight": [
        [(0.72, 0.16), (0.5, 0.0), (0.26, 0.12), (0.34, 0.36), (0.62, 0.54), (0.76, 0.78), (0.5, 1.0), (0.24, 0.84)],
        [(0.24, 0.84), (0.34, 0.6), (0.6, 0.42), (0.76, 0.24), (0.72, 0.16)],
    ],
    "nine": [
        [(0.74, 0.16), (0.5, 0.0), (0.24, 0.16), (0.28, 0.42), (0.54, 0.44), (0.74, 0.2)],
        [(0.74, 0.16), (0.72, 0.5), (0.62, 0.78), (0.5, 1.0)],
    ],
    "zero": [
        [(0.56, 0.02), (0.28, 0.14), (0.16, 0.5), (0.26, 0.88), (0.54, 1.0), (0.8, 0.74), (0.82, 0.3), (0.56, 0.02)]
    ],
    "tsu": [[(0.02, 0.34), (0.34, 0.18), (0.72, 0.18), (0.96, 0.4), (0.86, 0.68), (0.5, 0.86)]],
}
# Outlines with a grey value each, the later ones on top.
SHAPES: dict[str, list[tuple[float, list[tuple[float, float]]]]] = {
    "shirt": [
        (0.78, [(0.3, 0.04), (0.7, 0.04), (1.0, 0.2), (0.88, 0.46), (0.76, 0.38), (0.76, 0.98), (0.24, 0.98),
                (0.24, 0.38), (0.12, 0.46), (0.0, 0.2)]),
        (0.55, [(0.36, 0.04), (0.64, 0.04), (0.5, 0.16)]),
        (0.62, [(0.26, 0.58), (0.74, 0.58), (0.74, 0.68), (0.26, 0.68)]),
    ],
    "trousers": [
        (0.72, [(0.3, 0.0), (0.7, 0.0), (0.78, 1.0), (0.56, 1.0), (0.5, 0.3), (0.44, 1.0), (0.22, 1.0)]),
        (0.9, [(0.3, 0.0), (0.7, 0.0), (0.71, 0.09), (0.29, 0.09)]),
    ],
    "bag": [
        (0.5, [(0.3, 0.4), (0.32, 0.14), (0.5, 0.04), (0.68, 0.14), (0.7, 0.4), (0.64, 0.4), (0.62, 0.18), (0.5, 0.11),
               (0.38, 0.18), (0.36, 0.4)]),
        (0.7, [(0.04, 0.36), (0.96, 0.36), (1.0, 0.96), (0.0, 0.96)]),
        (0.88, [(0.04, 0.36), (0.96, 0.36), (0.97, 0.46), (0.03, 0.46)]),
    ],
}  # fmt: skip


def smooth(places: list[tuple[float, float]], each: int = 24) -> np.ndarray:
    """A curve through the places (Catmull and Rom's)."""
    p = np.array([places[0], *places, places[-1]])
    t = np.linspace(0, 1, each)[:, None]
    parts = []
    for a, b, c, d in zip(p, p[1:], p[2:], p[3:], strict=False):
        parts.append(0.5 * (2 * b + (c - a) * t + (2 * a - 5 * b + 4 * c - d) * t**2 + (3 * b - a - 3 * c + d) * t**3))
    return np.concatenate(parts)


def canvas() -> tuple[Image.Image, ImageDraw.ImageDraw]:
    image = Image.new("L", (SIDE * FINE, SIDE * FINE))
    return image, ImageDraw.Draw(image)


def written(strokes: Strokes) -> Image.Image:
    """Strokes of a round pen, a little thinner towards their ends."""
    image, draw = canvas()
    for stroke in strokes:
        line = smooth(stroke) * np.array([0.8, 1.0]) * (INNER - PEN) + (SIDE - INNER + PEN) / 2 + np.array([2.0, 0.0])
        widths = PEN * (0.8 + 0.2 * np.sin(np.linspace(0.2, np.pi - 0.2, len(line))))
        for (x, y), width in zip(line * FINE, widths * FINE / 2, strict=True):
            draw.ellipse([x - width, y - width, x + width, y + width], fill=255)
    return image


def filled(shapes: list[tuple[float, list[tuple[float, float]]]]) -> Image.Image:
    image, draw = canvas()
    for grey, outline in shapes:
        places = [tuple((np.array(place) * 24 + 2) * FINE) for place in outline]
        draw.polygon(places, fill=round(255 * grey))
    return image


def coarse(image: Image.Image, *, centred: bool) -> np.ndarray:
    """Grey values of whole pixels; moved to the middle by centre of mass, as MNIST's are."""
    soft = image.filter(ImageFilter.GaussianBlur(0.35 * FINE)).resize((SIDE, SIDE), Image.Resampling.BOX)
    grey = np.asarray(soft, dtype=np.uint8)
    if not centred:
        return grey
    middle = [(grey.sum(1 - axis) * np.arange(SIDE)).sum() / grey.sum() for axis in (0, 1)]
    moves = [round((SIDE - 1) / 2 - each) for each in middle]
    return np.roll(grey, moves, axis=(0, 1))


def main() -> None:
    drawn = {name: coarse(written(strokes), centred=True) for name, strokes in GLYPHS.items()}
    drawn |= {name: coarse(filled(shapes), centred=False) for name, shapes in SHAPES.items()}
    arrays = {"names": np.array(list(drawn)), "grey": np.stack(list(drawn.values()))}
    write_bytes(Path(str(DRAWN)), pack_arrays(arrays))
    print(f"{DRAWN}: {len(drawn)} pictures, {Path(str(DRAWN)).stat().st_size} bytes")


if __name__ == "__main__":
    main()
