"""How a measured value is kept: with six significant digits, which is more than is known of it."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator


def six_digits(value: float) -> float:
    """Return *value* rounded to six significant digits."""
    return float(f"{value:.6g}")


Figure = Annotated[float, AfterValidator(six_digits)]
