"""Images of a suite: made from numbers, so that a suite stays one file."""

from __future__ import annotations

import random
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

#: Tiles in a row and in a column. They are coarse, so that an image still shows them when a model
#: has made it smaller; noise would become the same grey whatever the seed.
TILES = 4

_Pixels = Annotated[int, Field(ge=1, le=4096)]


class Image(BaseModel):
    """An image of coloured tiles, four by four.

    ``size`` is width and height in pixels; ``seed`` gives the colours. The same numbers are the
    same image, on every machine.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: tuple[_Pixels, _Pixels] = (64, 64)
    seed: int = Field(ge=0)

    def pixels(self) -> bytes:
        """Return the image as RGB, a byte a channel, from left to right and top to bottom."""
        width, height = self.size
        # random() alone is promised to draw the same in every release of Python.
        draw = random.Random(self.seed).random
        colours = [
            [bytes(int(draw() * 256) for _ in "rgb") for _ in range(TILES)] for _ in range(TILES)
        ]
        rows = [
            b"".join(colours[down][x * TILES // width] for x in range(width))
            for down in range(TILES)
        ]
        return b"".join(rows[y * TILES // height] for y in range(height))
