"""Makes one short GIF of the pictures that the browser test kept: `python -m tests.e2e.gif FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image

WIDTH = 800
MILLISECONDS = 1800


def make(folder: Path) -> Path:
    """Write `story.gif` from the numbered PNG files of a folder; returns its path."""
    frames = []
    for path in sorted(folder.glob("[0-9]-*.png")):
        with Image.open(path) as picture:
            height = picture.height * WIDTH // picture.width
            small = picture.convert("RGB").resize((WIDTH, height), Image.Resampling.LANCZOS)
            frames.append(small.quantize(64))
    if not frames:
        raise SystemExit(f"no pictures in {folder}: run the browser test first")
    target = folder / "story.gif"
    first, *others = frames
    first.save(
        target, save_all=True, append_images=others, duration=MILLISECONDS, loop=0, optimize=True
    )
    return target


if __name__ == "__main__":
    print(make(Path(sys.argv[1])))
