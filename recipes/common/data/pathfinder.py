"""Pathfinder: are the two dots the ends of one dashed curve? Generates the images.

Two curves of dashes start near each other and wander; shorter curves distract. One dot marks the
start of one curve; the other marks its end (class 1) or the end of the other curve (class 0).
The pixels, row by row, are the tokens.

The rules are those of the published generator: dashes are joined with gaps, the next direction is
drawn with weight cos^2(continuity * turn), turns of more than 90 degrees / continuity are not
made, no curve comes near another one, distractors without a free place are left out, and the class
is drawn independently of the curves. Different here: directions that soon lead to a wall are less
likely, and sizes are in pixels of the small image that is made, in place of a large one that is
shrunk. Dashes of one curve are always nearer to each other than to any other curve (`gap` <
`clearance`), so that the class can be seen in the picture.

Many images grow at once, dash by dash. A grid that is finer than the pixels marks the occupied
places.

Source: Linsley et al., "Learning long-range spatial dependencies with horizontal gated recurrent
units", arXiv 1805.08315; Tay et al., "Long Range Arena", arXiv 2011.04006.
"""

from typing import NamedTuple

import numpy as np

from recipes.common.data.ragged import Ragged, Split

FINER = 2  # cells of the grid per pixel
DIRECTIONS = 16  # directions tried for each dash
AHEAD, DETOUR = (1.5, 3.0), 0.01  # dashes looked ahead; weight of a direction that leads to a wall


class Rules(NamedTuple):
    """The rules for the images; lengths are in pixels."""

    size: int = 32
    contour_length: int = 14  # dashes of the two curves
    distractor_length: int = 4  # dashes of each distractor
    distractors: int = 6
    dash: float = 1.5
    gap: float = 0.9
    clearance: float = 1.4  # between different curves, and a curve and its own past
    thickness: float = 0.9
    seed_distance: float = 5.0  # between the two curves' starts
    dot: float = 1.3  # radius
    border: float = 1.0
    continuity: float = 1.8


class Curves(NamedTuple):
    """The dashes of each image, by which its class can be checked."""

    start: np.ndarray  # (N, dashes, 2), row and column
    end: np.ndarray  # (N, dashes, 2)
    curve: np.ndarray  # (N, dashes), 0 and 1 the two long ones; -1 where there is no dash
    dots: np.ndarray  # (N, 2, 2): the two dots (while images are made: all four ends)


def generate(count: int, rules: Rules, seed: int) -> Split:
    """Makes `count` images as `size * size` grey values plus 1, equally many of both classes."""
    images, labels, _ = make_images(count, rules, seed)
    tokens = images.reshape(count, -1).astype("uint16") + 1
    return Split({"tokens": Ragged.of(tokens)}, labels)


def make_images(
    count: int, rules: Rules, seed: int, at_once: int = 1000
) -> tuple[np.ndarray, np.ndarray, Curves]:
    """The images (count, size, size) uint8, their labels, and the curves that they show."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.arange(count) % 2).astype("int32")
    parts: list[Curves] = []
    made = idle = 0
    while made < count:
        part = _curves(random, at_once, rules)
        new = len(part.start)
        idle = 0 if new else idle + 1
        if idle == 20:
            raise ValueError(f"no image has room for two curves under {rules}: make them shorter")
        parts.append(part)
        made += new
    curves = Curves(*(np.concatenate(arrays)[:count] for arrays in zip(*parts, strict=True)))
    curves = curves._replace(dots=_dots(curves.dots, labels, random))
    images = np.concatenate(
        [_draw(curves, slice(at, at + at_once), rules) for at in range(0, count, at_once)]
    )
    return images, labels, curves


class _Canvas:
    """Many images at once: the occupied places of each, and its dashes so far."""

    def __init__(self, random: np.random.Generator, images: int, rules: Rules) -> None:
        self.random, self.rules, self.images = random, rules, images
        cells = rules.size * FINER
        self.taken = np.zeros((images, cells, cells), bool)
        edge = round(rules.border * FINER)
        self.taken[:, :edge] = self.taken[:, -edge:] = True
        self.taken[:, :, :edge] = self.taken[:, :, -edge:] = True
        reach = int(np.ceil(rules.clearance * FINER)) + 1
        grid = np.mgrid[-reach : reach + 1, -reach : reach + 1].reshape(2, -1).T
        # and half a cell's diagonal at either end: a free cell is free at each of its points
        self.disc = grid[np.hypot(*grid.T) <= rules.clearance * FINER + np.sqrt(2)]
        self.shares = np.linspace(0, 1, 2 + int(rules.dash * FINER))
        self.dashes: list[tuple[np.ndarray, ...]] = []

    def keep(self, images: np.ndarray) -> None:
        """Keeps only some of the images, by a boolean array."""
        self.taken, self.images = self.taken[images], int(images.sum())
        self.dashes = [tuple(part[images] for part in dash) for dash in self.dashes]

    def take(self, start: np.ndarray, end: np.ndarray) -> None:
        """Keeps later dashes away from dashes (images, 2)."""
        rows = np.arange(self.images)[:, None]
        for share in self.shares:
            cell = np.floor((start + share * (end - start)) * FINER).astype(int)
            around = (cell[:, None] + self.disc).clip(0, self.taken.shape[1] - 1)
            self.taken[rows, around[..., 0], around[..., 1]] = True

    def grow(self, tail: np.ndarray, length: int, curve: int) -> tuple[np.ndarray, np.ndarray]:
        """Draws a curve of `length` dashes from `tail` (images, 2) where there is room for it.

        Returns the curve's other end, (images, 2), and in which images it was drawn.
        """
        before = self.taken.copy()
        drawn = np.ones(self.images, bool)
        angle = self.random.uniform(0, 2 * np.pi, self.images)
        start, laid = tail, []
        for step in range(length):
            if step:  # a dash closes its surroundings when the next one is there
                start = laid[-1][1] + self.rules.gap * _towards(angle)
            end, angle, free = self._dash(start, angle, anywhere=step == 0)
            if step:
                self.take(*laid[-1])
            laid.append((start, end))
            drawn &= free
        self.take(*laid[-1])
        self.taken[~drawn] = before[~drawn]
        self.dashes += [(*dash, np.where(drawn, curve, -1)) for dash in laid]
        return laid[-1][1], drawn

    def _dash(
        self, start: np.ndarray, angle: np.ndarray, anywhere: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The end of a dash from `start`, its direction, and whether there was room for one."""
        spread = np.pi if anywhere else np.pi / 2 / self.rules.continuity
        turns = self.random.uniform(-spread, spread, (self.images, DIRECTIONS))
        weights = 1.0 if anywhere else np.cos(self.rules.continuity * turns) ** 2
        angles = angle[:, None] + turns
        ends = start[:, None] + self.rules.dash * _towards(angles)
        free = self._free(start[:, None], ends)
        for ahead in AHEAD:
            open_ahead = self._free(ends, ends + ahead * self.rules.dash * _towards(angles))
            weights = weights * np.where(open_ahead, 1.0, DETOUR)
        # the least of exponential waiting times: one of the free ones, in proportion to weight
        waiting = self.random.exponential(size=free.shape) / np.maximum(weights, 1e-9)
        rows, chosen = np.arange(self.images), np.where(free, waiting, np.inf).argmin(axis=1)
        return ends[rows, chosen], angles[rows, chosen], free.any(axis=1)

    def _free(self, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Whether dashes (images, candidates, 2) lie on free cells only."""
        free = np.ones(end.shape[:2], bool)
        rows = np.arange(self.images)[:, None]
        for share in self.shares:
            cell = np.floor((start + share * (end - start)) * FINER).astype(int)
            cell = cell.clip(0, self.taken.shape[1] - 1)  # the border is taken
            free &= ~self.taken[rows, cell[..., 0], cell[..., 1]]
        return free


def _towards(angle: np.ndarray) -> np.ndarray:
    """Unit vectors, (..., 2)."""
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1)


def _curves(random: np.random.Generator, images: int, rules: Rules) -> Curves:
    """Two long curves and the distractors, in those of `images` attempts that have room."""
    canvas = _Canvas(random, images, rules)
    edge = rules.border + rules.seed_distance
    first = random.uniform(edge, rules.size - edge, (images, 2))
    second = first + rules.seed_distance * _towards(random.uniform(0, 2 * np.pi, images))
    empty = canvas.taken.copy()
    canvas.take(second, second)  # the first curve stays away from the second one's start
    first_tip, room = canvas.grow(first, rules.contour_length, 0)
    canvas.taken = empty
    for start, end, _ in canvas.dashes:
        canvas.take(start, end)
    second_tip, more = canvas.grow(second, rules.contour_length, 1)
    canvas.keep(room & more)
    for number in range(rules.distractors):
        canvas.grow(_free_place(canvas), rules.distractor_length, 2 + number)
    start, end, curve = (np.stack(part, axis=1) for part in zip(*canvas.dashes, strict=True))
    ends = np.stack([first, second, first_tip, second_tip], axis=1)
    return Curves(start, end, curve, ends[room & more])


def _free_place(canvas: _Canvas) -> np.ndarray:
    """A free place in each image; any place if no place is free."""
    cells = canvas.taken.shape[1]
    draws = np.where(canvas.taken, -1.0, canvas.random.random(canvas.taken.shape, "float32"))
    chosen = draws.reshape(canvas.images, cells * cells).argmax(axis=1)
    return (np.stack(np.divmod(chosen, cells), axis=-1) + 0.5) / FINER


def _dots(ends: np.ndarray, labels: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """The two marked ends of each image, of one curve or of both: (N, 2, 2)."""
    origin = random.integers(0, 2, len(labels))
    terminal = 2 + np.where(labels == 1, origin, 1 - origin)
    return ends[np.arange(len(labels))[:, None], np.stack([origin, terminal], axis=-1)]


def _draw(curves: Curves, images: slice, rules: Rules) -> np.ndarray:
    """Grey images: a pixel is lit by its distance to the nearest dash or dot."""
    start, end = curves.start[images], curves.end[images]
    shown = curves.curve[images] >= 0
    light = np.zeros((len(start), rules.size, rules.size), "float32")
    image, dash = np.nonzero(shown)
    _light(light, image, start[image, dash], end[image, dash], rules.thickness / 2)
    image, dot = np.nonzero(np.ones(curves.dots[images].shape[:2], bool))
    place = curves.dots[images][image, dot]
    _light(light, image, place, place, rules.dot)
    return np.round(255 * light).astype("uint8")


def _light(
    light: np.ndarray, image: np.ndarray, start: np.ndarray, end: np.ndarray, radius: float
) -> None:
    """Lights the pixels around segments (segments, 2), each of one image."""
    size = light.shape[1]
    reach = int(np.ceil(np.hypot(*(end - start).T).max() / 2 + radius + 1.5))
    window = np.mgrid[-reach : reach + 1, -reach : reach + 1].reshape(2, -1).T
    pixels = np.floor((start + end) / 2).astype(int)[:, None] + window
    along = (end - start)[:, None]
    offset = pixels + 0.5 - start[:, None]
    share = (offset * along).sum(-1) / np.maximum((along**2).sum(-1), 1e-12)
    distance = np.hypot(*np.moveaxis(offset - share.clip(0, 1)[..., None] * along, -1, 0))
    value = (radius + 0.5 - distance).clip(0, 1).astype("float32")
    inside = ((pixels >= 0) & (pixels < size)).all(axis=-1)
    rows = np.broadcast_to(image[:, None], inside.shape)[inside]
    np.maximum.at(light, (rows, *pixels[inside].T), value[inside])
