"""Which image models and attentions there are, and how they are trained unless options differ.

Imports no Keras.
"""

from typing import NamedTuple

from recipes.common.attentions import PublishedFilter
from recipes.common.images.sizes import Size

BY_DEFAULT = ("softmax", "gfsa", "p_laplacian", "agf", "performer", "topological")
ATTENTIONS = (*BY_DEFAULT[:2], "gfsa_high_pass", *BY_DEFAULT[2:])


class Model(NamedTuple):
    """What one `--model` may be."""

    family: str  # whose sizes in `SIZES` it has
    size: str  # that is taken beyond digits
    attentions: tuple[str, ...]


MODELS = {
    "vit": Model("deit", "deit-tiny", ATTENTIONS),
    "deit": Model("deit", "deit-small", ATTENTIONS),
    "topological": Model("deit", "deit-tiny", ("performer", "topological")),
    "cait": Model("cait", "cait-xxs24", ATTENTIONS),
    "swin": Model("swin", "swin-tiny", ("softmax", "gfsa", "gfsa_high_pass", "p_laplacian")),
}
PAPERS = {"deit": "arXiv 2312.04234", "cait": "arXiv 2312.04234", "swin": "arXiv 2312.04234"}
MODEL = "vit"
SMALL = Size("deit", 4, 64, 4, 128, patch=2, image=8)  # of digits
FROM_SCRATCH = {"epochs": 30, "learning_rate": 2e-3, "warm_up_epochs": 5.0, "mix_up": 0.3}
OF_DIGITS = {**FROM_SCRATCH, "epochs": 20, "learning_rate": 3e-3}
FINE_TUNING = {"epochs": 5, "learning_rate": 5e-5, "warm_up_epochs": 0.5, "mix_up": 0.0}

# Touvron et al., arXiv 2012.12877, Table 9: what GFSA and p-LaT were trained with.
PUBLISHED = {
    "epochs": 300,
    "batch_size": 1024,
    "learning_rate": 1e-3,  # 5e-4 for each 512 images of a batch
    "final_learning_rate": 1e-5,
    "warm_up_epochs": 5,
    "weight_decay": 0.05,
    "crop": 0.08,
    "flip": True,
    "rand_augment": 0.3,
    "mix_up": 0.8,
    "cut_mix": 1.0,
    "random_erasing": 0.25,
    "repeats": 3,
    "label_smoothing": 0.1,
    "drop_path": 0.1,
    "dropout": 0.0,
}
# what GFSA's released code sets otherwise
RELEASED = {**PUBLISHED, "epochs": 500}
ORDERS = {"deit": 3, "cait": 4, "swin": 3}  # K of GFSA; arXiv 2312.04234, Section 5.4
AGF = PublishedFilter(4, 0.01, -0.5, 0.0)  # a and b of arXiv 2505.08516; K and gamma are ours
