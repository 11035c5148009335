import numpy as np
import pytest

from recipes.common.data.pathfinder import Rules, generate, make_images

RULES = Rules(contour_length=6, distractor_length=3)


@pytest.fixture(scope="module")
def made():
    return make_images(200, RULES, seed=5)


def distance(first, second):
    """Least distance between two dashes, from many points on both."""
    shares = np.linspace(0, 1, 20)[:, None]
    one = first[0] + shares * (first[1] - first[0])
    other = second[0] + shares * (second[1] - second[0])
    return np.linalg.norm(one[:, None] - other[None], axis=-1).min()


def joined(dashes, dots, reach):
    """Whether a walk over dashes that are at most `reach` apart leads from dot to dot."""
    near = [
        {index for index, dash in enumerate(dashes) if distance((dot, dot), dash) < reach}
        for dot in dots
    ]
    assert all(near)
    reached, border = set(near[0]), list(near[0])
    while border:
        here = border.pop()
        for index, dash in enumerate(dashes):
            if index not in reached and distance(dashes[here], dash) < reach:
                reached.add(index)
                border.append(index)
    return bool(reached & near[1])


def test_the_class_is_whether_a_walk_along_dashes_joins_the_dots(made):
    _, labels, curves = made
    reach = (RULES.gap + RULES.clearance) / 2  # over the gaps, not to another curve
    for index in range(60):
        shown = curves.curve[index] >= 0
        dashes = list(zip(curves.start[index][shown], curves.end[index][shown], strict=True))
        assert joined(dashes, curves.dots[index], reach) == bool(labels[index])


def test_curves_are_as_the_rules_say(made):
    _, _, curves = made
    lengths = np.linalg.norm(curves.end - curves.start, axis=-1)[curves.curve >= 0]
    np.testing.assert_allclose(lengths, RULES.dash, atol=1e-9)
    for numbers, starts, ends in zip(curves.curve, curves.start, curves.end, strict=True):
        counts = np.bincount(numbers[numbers >= 0])
        assert counts[:2].tolist() == [RULES.contour_length] * 2
        assert set(counts[2:]) <= {0, RULES.distractor_length}
        for number in (0, 1):
            start, end = starts[numbers == number], ends[numbers == number]
            gaps = np.linalg.norm(start[1:] - end[:-1], axis=-1)
            np.testing.assert_allclose(gaps, RULES.gap, atol=1e-9)
            angles = np.arctan2(*(end - start).T)
            turns = np.abs((np.diff(angles) + np.pi) % (2 * np.pi) - np.pi)
            assert turns.max() <= np.pi / 2 / RULES.continuity + 1e-9
    first, second = (curves.start[:, curves.curve[0] == number][:, 0] for number in (0, 1))
    apart = np.linalg.norm(first - second, axis=-1)
    np.testing.assert_allclose(apart, RULES.seed_distance, atol=1e-9)


def test_images_show_the_dashes_and_the_dots(made):
    images, _, curves = made
    assert (images.shape, images.dtype) == ((200, 32, 32), np.uint8)
    for index, image in enumerate(images[:50]):
        shown = curves.curve[index] >= 0
        middles = (curves.start[index][shown] + curves.end[index][shown]) / 2
        dots = curves.dots[index]
        assert (image[tuple(dots.astype(int).T)] == 255).all()
        assert (image[tuple(middles.astype(int).T)] > 60).all()
        lit = np.argwhere(image > 0) + 0.5
        places = np.concatenate([middles, dots])
        nearest = np.linalg.norm(lit[:, None] - places, axis=-1).min(axis=1)
        assert nearest.max() < RULES.dash / 2 + RULES.dot + 0.6


def test_classes_are_balanced_and_not_told_by_the_brightness():
    images, labels, _ = make_images(400, Rules(size=16, contour_length=4, distractors=2), seed=2)
    assert labels.sum() == 200
    light = images.reshape(400, -1).mean(axis=1)
    gap = abs(light[labels == 1].mean() - light[labels == 0].mean())
    assert gap < 0.4 * light.std()
    assert not np.array_equal(labels, np.sort(labels))


def test_tokens_are_pixels_and_the_seed_sets_them():
    rules = Rules(size=16, contour_length=4, distractors=1)
    first, same, other = (generate(30, rules, seed) for seed in (1, 1, 2))
    images, labels, _ = make_images(30, rules, 1)
    assert (first.lengths == 256).all()
    np.testing.assert_array_equal(first.tokens["tokens"][3], images[3].ravel().astype(int) + 1)
    np.testing.assert_array_equal(first.labels, labels)
    np.testing.assert_array_equal(first.tokens["tokens"].values, same.tokens["tokens"].values)
    assert not np.array_equal(first.tokens["tokens"].values, other.tokens["tokens"].values)


def test_published_length_is_made():
    _, _, curves = make_images(20, Rules(), seed=0)
    assert (curves.curve == 0).sum(axis=1).tolist() == [14] * 20


def test_no_room_for_the_curves():
    with pytest.raises(ValueError, match="no image has room"):
        make_images(2, Rules(size=10, contour_length=40, seed_distance=1.0), seed=0, at_once=20)
