"""Colors that remain distinct for all kinds of color vision, light enough for black text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

OKABE_ITO: Final = ("#56b4e9", "#e69f00", "#009e73", "#f0e442", "#cc79a7", "#d55e00", "#0072b2", "#999999")
"""Eight colors of M. Okabe and K. Ito, "Color Universal Design" (2008)."""
SCALE: Final = ("#3b528b", "#31688e", "#26838f", "#1f9d8a", "#6cce5a", "#b6de2b", "#fee825")
"""From dark blue to yellow with increasing lightness, as in the color map viridis (S. van der Walt, N. Smith 2015)."""
HEAT: Final = ("#e8f1fa", "#fdd9a8", "#fdae61", "#f46d43", "#d73027", "#a50026")
"""Conflict degrees: 1 pale blue, then orange to dark red."""
EMPTY: Final = "#f6f8fa"
MEMORY: Final = {"GL": "#dfe3e8", "SH": "#b9dcf5", "RF": "#fbd9a0", "FR": "#e6c5da"}
LEVELS: Final = {"kernel": "#dfe3e8", "block": "#c9e7dd", "warpgroup": "#d9e8a8", "warp": "#f7f0a8", "quad_pair": "#f6d3b8"}
LANE_LEVEL: Final = "#f3c6b2"


def _parts(color: str) -> tuple[int, int, int]:
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


def mixed(color: str, other: str, share: float) -> str:
    """Mix a color with a share (0 to 1) of another."""
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(_parts(color), _parts(other), strict=True))


def tint(color: str, share: float) -> str:
    """Lighten a color by a share of white, 0 to 1."""
    return mixed(color, "#ffffff", share)


def ink_on(color: str) -> str:
    """Return black or white, whichever has more contrast on a color."""
    red, green, blue = _parts(color)
    return "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 120 else "#ffffff"


def along(anchors: Sequence[str], count: int) -> tuple[str, ...]:
    """Return `count` colors along a scale."""
    colors = []
    for index in range(count):
        place = (len(anchors) - 1) * (index / max(count - 1, 1))
        left = min(int(place), len(anchors) - 2)
        colors.append(mixed(anchors[left], anchors[left + 1], place - left))
    return tuple(colors)


def distinct(count: int) -> tuple[str, ...]:
    """Return colors for `count` owners: eight distinct ones, or a scale for more."""
    if count <= len(OKABE_ITO):
        return tuple(tint(color, 0.25) for color in OKABE_ITO[:count])
    return tuple(tint(color, 0.15) for color in along(SCALE, count))


def lane_colors(count: int) -> tuple[str, ...]:
    """Return a color for each lane: four adjacent lanes share a hue, from light to dark."""
    return tuple(tint(OKABE_ITO[lane // 4 % 8], 0.72 - 0.2 * (lane % 4)) for lane in range(count))


def heat(degree: int) -> str:
    """Return the color of a conflict degree: the number of passes relative to the ideal."""
    return HEAT[0] if degree <= 1 else HEAT[min(degree.bit_length() - (degree & (degree - 1) == 0), 5)]
