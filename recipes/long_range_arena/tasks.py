"""The five tasks: what is published of them, and the two presets. Imports no Keras.

AGF's K, gamma, a, b and the learning rate of each task are those of the paper (arXiv 2505.08516).
The batch sizes, warm-ups and numbers of steps are those of the public comparison that its models
come from (Skyformer, arXiv 2111.00035): 2 layers, 2 heads of 32, feed-forward 128, dropout 0.1,
50,000 steps of Adam with a linear decay.
"""

from typing import Any, NamedTuple

from recipes.common.attentions import PublishedFilter

STEPS = 50_000
MODEL = {"layers": 2, "d_model": 64, "heads": 2, "key_dim": 32, "feed_forward": 128, "dropout": 0.1}


class Task(NamedTuple):
    """One task's published settings."""

    filter: PublishedFilter
    learning_rate: float
    batch_size: int
    warm_up: int  # steps
    train_examples: int  # of data made here; else None stands for all that there is
    evaluation_examples: int | None
    max_length: int  # tokens; longer texts are cut
    source: str  # "made", "tfds" or "files"


TASKS = {
    "listops": Task(PublishedFilter(5, 0.1, 1.5, 1), 1e-3, 32, 1000, 96_000, 2000, 2000, "made"),
    "text": Task(PublishedFilter(5, 0.001, 1, 1), 5e-5, 32, 80, None, None, 4000, "tfds"),
    "retrieval": Task(PublishedFilter(5, 0.1, 1, 1), 5e-4, 16, 800, None, None, 4000, "files"),
    "image": Task(PublishedFilter(7, 0.01, 2, -1), 1e-3, 256, 175, None, None, 1024, "tfds"),
    "pathfinder": Task(
        PublishedFilter(3, 1e-4, 1.5, -1), 1e-4, 128, 312, 160_000, 20_000, 1024, "made"
    ),
}

# Small enough for two cores and a few minutes; the models are those of the paper.
SMOKE: dict[str, dict[str, Any]] = {
    "listops": {"train_examples": 4000, "evaluation_examples": 1000, "max_length": 200},
    "text": {"train_examples": 2000, "evaluation_examples": 500, "max_length": 512},
    "retrieval": {"train_examples": 1000, "evaluation_examples": 250, "max_length": 512},
    "image": {"train_examples": 2000, "evaluation_examples": 500, "max_length": 1024},
    "pathfinder": {"train_examples": 2000, "evaluation_examples": 500, "max_length": 256},
}
SMOKE_TRAINING = {"epochs": 3, "batch_size": 32, "warm_up": 50, "learning_rate": 1e-3}


def preset(task: str, name: str) -> dict[str, Any]:
    """The options that `--preset` stands for; `epochs` is None where the steps set it."""
    published = TASKS[task]
    settings = {
        **MODEL,
        "epochs": None,
        "learning_rate": published.learning_rate,
        "batch_size": published.batch_size,
        "warm_up": published.warm_up,
        "train_examples": published.train_examples,
        "evaluation_examples": published.evaluation_examples,
        "max_length": published.max_length,
    }
    if name == "smoke":
        settings.update(SMOKE_TRAINING, **SMOKE[task])
    return settings
