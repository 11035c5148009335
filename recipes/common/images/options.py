"""The options of `recipes.image_classification`, in three groups. Imports no Keras."""

import argparse
import math

from recipes.common.command.options import add_shared
from recipes.common.command.parsing import at_least, number_in
from recipes.common.images.defaults import (
    FINE_TUNING,
    FROM_SCRATCH,
    MODEL,
    MODELS,
    OF_DIGITS,
)
from recipes.common.images.sizes import SIZES

WHERE = ("all", "even", "first-half", "last-half")
TOLD = {
    name: f"{FROM_SCRATCH[name]:g}; of digits {OF_DIGITS[name]:g}; with --preset {x:g}"
    for name, x in FINE_TUNING.items()
}


def add_training_options(group: argparse._ArgumentGroup) -> None:
    """Adds how a model is trained."""
    training = {"epochs": None, "batch_size": 64, "learning_rate": None, "validation_fraction": 0.2}
    shared = {**training, "patience": None, "precision": "float32", "ema": 0.0}
    add_shared(group, shared, {**TOLD, "patience": "all"})
    add = group.add_argument
    share = number_in(0.0, 1.0)
    add("--final-learning-rate", type=share, default=0.0, help="at the end of the cosine")
    warm_up = f"epochs until the peak of the learning rate [{TOLD['warm_up_epochs']}]"
    add("--warm-up-epochs", type=number_in(0.0, math.inf), help=warm_up)
    add("--weight-decay", type=share, default=0.05, help="AdamW's")
    add("--label-smoothing", type=share, default=0.0, help="share that all classes get")
    add("--accumulate", type=at_least(1), default=1, help="batches of one update of the weights")


def add_augmentation_options(group: argparse._ArgumentGroup) -> None:
    """Adds how training images are changed."""
    add, share = group.add_argument, number_in(0.0, 1.0)
    least = "least share of the area that is cut out by chance and resized; 1: none is"
    add("--crop", type=number_in(0.0, 1.0 + 1e-9, open_low=True), default=1.0, help=least)
    add("--flip", action=argparse.BooleanOptionalAction, default=False, help="left and right")
    add("--rand-augment", type=share, default=0.0, help="factor of Keras' RandAugment")
    alpha = f"alpha of mixup [{TOLD['mix_up']}]"
    add("--mix-up", type=number_in(0.0, math.inf), help=alpha)
    add("--cut-mix", type=number_in(0.0, 1.0 + 1e-9), default=0.0, help="factor of Keras' CutMix")
    add("--random-erasing", type=share, default=0.0, help="share of the images")
    repeats = "how often an image of an epoch comes in it: repeated augmentation"
    add("--repeats", type=at_least(1), default=1, help=repeats)


def add_model_options(group: argparse._ArgumentGroup) -> None:
    """Adds what the model is."""
    add = group.add_argument
    add("--model", choices=tuple(MODELS), help=f"the family, from scratch [{MODEL}]")
    preset = (
        "a KerasHub preset of ViT, DeiT, Swin, DINOv2, ..., its name or a folder: fine-tuned, with "
        "a new head; takes the place of all other options of the model but --where"
    )
    add("--preset", help=preset)
    sizes = "a published size; others take its place [digits: 4 layers of 64, else the smallest]"
    add("--size", choices=tuple(SIZES), help=sizes)
    add("--where", choices=WHERE, default="all", help="blocks that have --attention, not softmax")
    add("--image-size", type=at_least(1), help="side in pixels [of the data or the size]")
    add("--patch", type=at_least(1), help="side of a patch in pixels [of the data or the size]")
    names = ("layers", "d_model", "heads", "feed_forward")
    add_shared(group, dict.fromkeys((*names, "dropout")), {"dropout": "0"})
    path = "share of the examples that lose a branch of the last block [0]"
    add("--drop-path", type=number_in(0.0, 1.0), help=path)
    start = (
        "a model.keras of this recipe to start from, also of other images or classes (vit, deit)"
    )
    add("--start-from", help=start)
    add("--post-norm", action="store_true", help="normalise sums, not inputs (vit, deit)")
