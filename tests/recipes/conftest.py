"""Tiny data in files, and the options of a model that trains on one of them in seconds."""

import keras
import numpy as np
import pytest

CHANNELS = 3
MISSING = "?"


def write_ts(path, random, per_class):
    """Noisy series of 4 to 9 steps: a wave of one frequency or another; one value missing."""
    lines = [
        "@problemName Tiny",
        "@timeStamps false",
        "@missing true",
        "@univariate false",
        f"@dimensions {CHANNELS}",
        "@equalLength false",
        "@classLabel true low high",
        "@data",
    ]
    for number in range(2 * per_class):
        label = ("low", "high")[number % 2]
        time = np.arange(random.integers(4, 10))
        wave = np.sin(time * (0.4, 1.6)[number % 2] + random.uniform(0, 1))
        channels = [
            [f"{value:.4f}" for value in 5 + wave + 0.3 * random.normal(size=len(time))]
            for _ in range(CHANNELS)
        ]
        if number == 3:
            channels[1][2] = MISSING
        lines.append(":".join(",".join(channel) for channel in channels) + f":{label}")
    path.write_text("\n".join(lines) + "\n")


def write_images(folder, classes=("bird", "cat"), count=6, value=0):
    """Images of one grey, brighter from class to class."""
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for index in range(count):
            image = np.full((10, 12, 3), 20 * number + 10 + index + value, "uint8")
            keras.utils.save_img(folder / name / f"{index}.png", image, scale=False)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("archive")
    random = np.random.default_rng(7)
    write_ts(folder / "Tiny_TRAIN.ts", random, 15)
    write_ts(folder / "Tiny_TEST.ts", random, 9)
    return folder


@pytest.fixture(scope="session")
def tiny_arguments(tiny_folder):
    text = (
        f"--dataset Tiny --data-dir {tiny_folder} --d-model 8 --heads 2 --key-dim 4 "
        "--feed-forward 8 --layers 1 --batch-size 4 --epochs 4 --learning-rate 0.03 --verbose 0"
    )
    return text.split()
