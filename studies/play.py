"""Makes the moving picture of the README: the page of curves, with points that are set and dragged by a hand.

    python studies/play.py [RUN] [--out docs/figures/play.gif]

Serves a run, by default the learner of 2D regression that comes with the package, opens its page in Chromium, plays the
scenes below on it and keeps what is seen. Needs Chromium and the development extras."""

import argparse
import base64
import io
import math
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from PIL import Image, ImageDraw

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from tests.serving.chromium import Browser  # noqa: E402

SIZE = (660, 396)  # of the window
FINE = 1.5  # pixels of the picture for one of the page
MOMENT = 90  # milliseconds of a frame
MOST_BYTES = 2_000_000
HIDDEN = "header, .lead, .tools, footer, #problem"
# Styles are set one by one: the page's policy forbids a sheet of one's own.
PAGE = f"""(() => {{
  for (const one of document.querySelectorAll('{HIDDEN}')) one.style.display = 'none';
  document.body.style.padding = '8px';
  document.documentElement.style.overflow = 'hidden';
  document.querySelector('canvas.plot').style.height = '300px';
  document.querySelector('canvas.plot').style.outline = 'none';
}})()"""
Place = tuple[float, float]
# Where points are set and dragged to, in the units of the plot; a pause after each.
SCENES: tuple[tuple[str, tuple[Place, ...]], ...] = (
    ("set", ((0.6, -1.8),)),
    ("set", ((2.5, 0.2),)),
    ("set", ((4.4, 2.2),)),
    ("drag", ((4.4, 2.2), (4.4, 0.0), (4.4, -2.4))),
    ("drag", ((2.5, 0.2), (2.5, 1.6), (2.5, 3.0))),
    ("set", ((1.5, 1.2),)),
    ("set", ((3.5, 1.0),)),
    ("drag", ((4.4, -2.4), (4.4, -0.6), (4.4, 1.6), (4.4, -2.4))),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", default=str(ROOT / "src/stmaml/pretrained/regression2d"))
    parser.add_argument("--out", type=Path, default=ROOT / "docs/figures/play.gif")
    flags = parser.parse_args()
    with_cursor = list(played(flags.run))
    save(with_cursor, flags.out)
    print(f"{flags.out}: {len(with_cursor)} moments, {flags.out.stat().st_size / 1e6:.2f} MB")
    if flags.out.stat().st_size > MOST_BYTES:
        raise SystemExit(f"that is more than {MOST_BYTES / 1e6:g} MB.")


def played(run: str) -> Iterator[tuple[Image.Image, int]]:
    """Frames and how long each stays."""
    command = [sys.executable, "-m", "stmaml", "serve", run, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    address = next(found[1] for line in lines if (found := re.search(r"serving at (\S+)", line)))
    browser = Browser(width=SIZE[0], height=SIZE[1])
    try:
        browser.open(address)
        browser.wait_for("document.querySelector('canvas.plot')?.dataset.version")
        yield from Hand(browser).scenes()
    finally:
        browser.close()
        process.send_signal(signal.SIGINT)
        process.wait(20)


class Hand:
    """A mouse on the page, and where it is."""

    def __init__(self, browser: Browser):
        self.browser = browser
        browser.value(PAGE)
        browser.value("[...document.querySelectorAll('button')].find((b) => b.textContent === 'Clear').click()")
        time.sleep(0.6)
        find = "(() => { const b = document.querySelector('canvas.plot').getBoundingClientRect(); "
        self.box = browser.value(find + "return [b.x, b.y, b.width, b.height]; })()")
        self.at = (2.5, 0.0)
        self.down = False

    def scenes(self) -> Iterator[tuple[Image.Image, int]]:
        """All that is played."""
        yield self.seen(900)
        for what, places in SCENES:
            yield from self.go(places[0], moments=4)
            self.press()
            if what == "set":
                yield self.seen(200)
            for place in places[1:]:
                yield from self.go(place, moments=7)
            self.release()
            yield self.seen(900 if what == "set" else 700)
        yield self.seen(1500)

    def go(self, to: Place, moments: int) -> Iterator[tuple[Image.Image, int]]:
        """Moves, slowly at both ends."""
        start = self.at
        for i in range(1, moments + 1):
            part = 0.5 - 0.5 * math.cos(math.pi * i / moments)
            self.at = (start[0] + part * (to[0] - start[0]), start[1] + part * (to[1] - start[1]))
            self.mouse("mouseMoved")
            yield self.seen(MOMENT)

    def press(self) -> None:
        self.down = True
        self.mouse("mousePressed")

    def release(self) -> None:
        self.mouse("mouseReleased")
        self.down = False

    def mouse(self, kind: str) -> None:
        x, y = self.place()
        self.browser.send(
            "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=int(self.down), clickCount=1
        )
        self.settled()

    def place(self) -> Place:
        """Where the mouse is on the page."""
        x, y, width, height = self.box
        low, high = map(float, self.browser.value("document.querySelector('canvas.plot').dataset.range").split(","))
        along, up = self.at[0] / 5, (self.at[1] - low) / (high - low)
        return x + 46 + along * (width - 46 - 12), y + height - 28 - up * (height - 10 - 28)

    def settled(self) -> None:
        """Waits until the page has answered."""
        count = "document.querySelector('canvas.plot').dataset.version"
        before, end = self.browser.value(count), time.monotonic() + 0.5
        while time.monotonic() < end:
            time.sleep(0.06)
            if (now := self.browser.value(count)) == before:
                return
            before = now

    def seen(self, milliseconds: int) -> tuple[Image.Image, int]:
        """The panel, with a hand where the mouse is."""
        clip = {"x": 0, "y": 0, "width": SIZE[0], "height": SIZE[1], "scale": FINE}
        shot = self.browser.send("Page.captureScreenshot", format="png", clip=clip)
        image = Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")
        _pointer(image, self.place())
        return image, milliseconds


def _pointer(image: Image.Image, at: Place) -> None:
    """An arrow, white at its edge."""
    outline = [(0, 0), (0, 19), (4.5, 15), (8, 22.5), (11, 21), (7.6, 13.8), (13.5, 13.4)]
    places = [((at[0] + x) * FINE, (at[1] + y) * FINE) for x, y in outline]
    ImageDraw.Draw(image).polygon(places, fill="#1d2126", outline="white", width=2)


def save(frames: list[tuple[Image.Image, int]], path: Path) -> None:
    """All frames as one picture that begins anew at its end."""
    (first, *others), times = [image for image, _ in frames], [milliseconds for _, milliseconds in frames]
    how = {"save_all": True, "append_images": others, "duration": times, "loop": 0}
    if path.suffix == ".webp":
        first.save(path, quality=82, method=6, **how)
    else:
        palette = _beside([first, *others][:: max(1, len(frames) // 12)]).quantize(160)
        quantised = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in (first, *others)]
        quantised[0].save(path, optimize=True, **{**how, "append_images": quantised[1:]})


def _beside(images: list[Image.Image]) -> Image.Image:
    """Several pictures in one, for colours that suit all of them."""
    whole = Image.new("RGB", (images[0].width, images[0].height * len(images)))
    for i, image in enumerate(images):
        whole.paste(image, (0, i * image.height))
    return whole


if __name__ == "__main__":
    main()
