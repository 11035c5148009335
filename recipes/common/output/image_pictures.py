"""Pictures of image models: the factors of their masks, and images with their predicted classes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.colors import TwoSlopeNorm

from recipes.common.output.plot import save

RIGHT, WRONG = "#1b7837", "#b2182b"


def write_offsets(path: Path, title: str, tables: dict[str, np.ndarray]) -> None:
    """Draws the factors by offset of block-Toeplitz masks: a row for each layer, a panel per head.

    The middle of a panel is a patch and itself. Blue offsets count less, red ones more; the scale
    is logarithmic, and the same for all panels. The tables, (N, 2 h - 1, 2 w - 1), are the
    logarithms of the factors by the name of a layer.
    """
    heads = max(len(table) for table in tables.values())
    doublings = {name: table / np.log(2) for name, table in tables.items()}
    highest = max(1e-3, *(float(np.abs(table).max()) for table in doublings.values()))
    size = (1.9 * heads + 1.4, 1.9 * len(tables) + 0.9)
    figure, axes = plt.subplots(
        len(tables), heads, figsize=size, squeeze=False, layout="constrained"
    )
    norm = TwoSlopeNorm(0.0, -highest, highest)
    for row, (name, table) in zip(axes, doublings.items(), strict=True):
        down, across = (side // 2 for side in table.shape[1:])
        extent = (-across - 0.5, across + 0.5, down + 0.5, -down - 0.5)
        for head, panel in enumerate(row):
            image = panel.imshow(table[head], cmap="RdBu_r", norm=norm, extent=extent)
            panel.set_xticks((-across, 0, across))
            panel.set_yticks((-down, 0, down))
            panel.tick_params(labelsize=8)
            if name == next(iter(tables)):
                panel.set_title(f"head {head + 1}", fontsize=10)
        row[0].set_ylabel(f"{name}\nrows down", fontsize=9)
    for panel in axes[-1]:
        panel.set_xlabel("columns across", fontsize=9)
    figure.colorbar(image, ax=axes, shrink=0.8).set_label("factor in doublings (0: factor 1)")
    figure.suptitle(title)
    save(figure, path)


def write_predictions(
    path: Path,
    title: str,
    images: np.ndarray,
    labels: np.ndarray,
    probabilities: np.ndarray,
    classes: Sequence[str],
) -> None:
    """Draws images (N, h, w, C) with the most probable class of each; wrong ones in red."""
    columns = min(8, len(images))
    rows = -(-len(images) // columns)
    figure, axes = plt.subplots(
        rows,
        columns,
        figsize=(1.5 * columns, 1.85 * rows + 0.5),
        squeeze=False,
        layout="constrained",
    )
    for panel in axes.ravel():
        panel.axis("off")
    for panel, image, label, row in zip(axes.ravel(), images, labels, probabilities, strict=False):
        shown = np.clip(image, 0, 255) / 255
        panel.imshow(shown[..., 0] if shown.shape[-1] == 1 else shown, cmap="gray", vmin=0, vmax=1)
        predicted = int(row.argmax())
        words = f"{classes[predicted]} ({row[predicted]:.2f})"
        if predicted != label:
            words += f"\nis {classes[label]}"
        panel.set_title(words, fontsize=9, color=RIGHT if predicted == label else WRONG)
    figure.suptitle(title)
    save(figure, path)
