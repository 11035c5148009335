"""`python -m recipes.image_classification`: its options, published settings, what it reports.

Does not import Keras itself.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from recipes.common.attentions import MULTIPLIER, RATE, PublishedFilter, Settings
from recipes.common.command.effects import Effect
from recipes.common.command.options import REMEDIES, check_heads
from recipes.common.command.parsing import (
    UsageError,
    at_least,
    choose_backend,
    flags,
    number_in,
    run_program,
)
from recipes.common.data.sources import refuse_beside_preset
from recipes.common.images.sizes import SIZES, Size
from recipes.common.output.notes import (
    absent_note,
    coefficient_notes,
    paired_difference,
    settings_note,
)
from recipes.common.recipe import Recipe
from recipes.common.training.records import Run, best_run
from recipes.image_classification.data import SOURCES, Problem

if TYPE_CHECKING:
    import keras

BY_DEFAULT = ("softmax", "gfsa", "p_laplacian", "agf", "performer", "topological")
ATTENTIONS = (*BY_DEFAULT[:2], "gfsa_high_pass", *BY_DEFAULT[2:], *REMEDIES)


class Model(NamedTuple):
    """The sizes and the attentions of one `--model`."""

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
PAPER, PAPER_OF_TRAINING = "arXiv 2312.04234", "arXiv 2012.12877"
MODEL = "vit"
SMALL = Size("deit", 4, 64, 4, 128, patch=2, image=8)  # of digits
FROM_SCRATCH = {"epochs": 30, "learning_rate": 2e-3, "warm_up_epochs": 5.0, "mix_up": 0.3}
OF_DIGITS = {**FROM_SCRATCH, "epochs": 20, "learning_rate": 3e-3}
FINE_TUNING = {"epochs": 5, "learning_rate": 5e-5, "warm_up_epochs": 0.5, "mix_up": 0.0}
HINTS = {
    name: f"{FROM_SCRATCH[name]:g}; of digits {OF_DIGITS[name]:g}; with --preset {x:g}"
    for name, x in FINE_TUNING.items()
}
WIDTHS = ("layers", "d_model", "heads", "feed_forward")
# options that a preset decides
SET_BY_PRESET = (
    *("model", "size", "image_size", "patch", *WIDTHS),
    *("dropout", "drop_path", "start_from", "post_norm"),
)

# Touvron et al., arXiv 2012.12877, Table 9: the training of GFSA and p-LaT.
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
# the schedules of CaiT (arXiv 2103.17239) and Swin (arXiv 2103.14030), where they differ
PUBLISHED_SCHEDULES = {
    "cait": {"epochs": 400},
    "swin": {"warm_up_epochs": 20, "repeats": 1, "clip": 5.0},
}
# the settings that differ in GFSA's released code
RELEASED = {**PUBLISHED, "epochs": 500}
ORDERS = {"deit": 3, "cait": 4, "swin": 3}  # K of GFSA; arXiv 2312.04234, Section 5.4
AGF = PublishedFilter(4, 0.01, -0.5, 0.0)  # a and b of arXiv 2505.08516; K and gamma are ours
# with --published: AGF's settings there, and the blocks that have it
PUBLISHED_AGF = {
    "imagenet100": (PublishedFilter(4, 0.0, -0.5, 0.0), "first:1"),
    "imagenet2012": (PublishedFilter(3, 1e-4, -0.5, 0.0), "first:6"),
}
FILTERED = ("gfsa", "gfsa_high_pass")
BLOCKWISE_FROM = 513  # tokens from which GFSA forms its matrix in blocks of rows
SHOWN = 32  # test images in the picture of predictions


class ImageClassification(Recipe):
    """Attention layers in image models."""

    name = "image_classification"
    description = (
        "Trains and compares attention layers in image models; writes a table, curves, pictures "
        "of masks and predictions, and the best model for serving."
    )
    attentions = ATTENTIONS
    by_default = BY_DEFAULT
    results = "<dataset>-<model>"
    training = {"epochs": None, "batch_size": 64, "learning_rate": None, "patience": None}
    training |= {"validation_fraction": 0.2, "weight_decay": 0.05, "ema": 0.0}
    sizes = dict.fromkeys((*WIDTHS, "dropout"))
    hints = {
        **HINTS,
        "patience": "all",
        "dropout": "0",
        RATE: f"{MULTIPLIER:g}; with --preset 100; with --published and --released 1",
        "order": "gfsa: 3, of CaiT 4; agf: 4",
    }
    effects = (Effect("data_seed", dataset=("digits", "folder")),)
    data_files = "tensorflow-datasets' folder; of --dataset folder, one with a sub-folder per class"

    def add_options(self, add: Callable[..., Any]) -> None:
        share = number_in(0.0, 1.0)
        share_or_1 = number_in(0.0, 1.0 + 1e-9)
        add("--dataset", choices=tuple(SOURCES), default="digits", help="what is classified")
        add("--data-dir", type=Path, help=self.data_files)
        seed = "seed of the division into training, validation and test data, if the data has none"
        add("--data-seed", type=at_least(0), default=0, help=seed)
        for name, whose in (("published", "papers'"), ("released", "GFSA code's")):
            add(f"--{name}", action="store_true", help=f"the {whose} training of DeiT, CaiT, Swin")
        # of training
        add("--final-learning-rate", type=share, default=0.0, help="at the end of the cosine")
        warm_up = (
            f"epochs to the peak of the learning rate, at most all [{HINTS['warm_up_epochs']}]"
        )
        add("--warm-up-epochs", type=number_in(0.0, math.inf), help=warm_up)
        add("--label-smoothing", type=share, default=0.0, help="share that all classes get")
        clip = "greatest norm of the gradient [any]"
        add("--clip", type=number_in(0.0, math.inf, open_low=True), help=clip)
        accumulate = "batches of one update of the weights"
        add("--accumulate", type=at_least(1), default=1, help=accumulate)
        # changes of training images
        least = "least share of the area that is cut out at random and resized; 1: none is"
        some = number_in(0.0, 1.0 + 1e-9, open_low=True)
        add("--crop", type=some, default=1.0, help=least)
        flip = argparse.BooleanOptionalAction
        add("--flip", action=flip, default=False, help="left and right")
        add("--rand-augment", type=share, default=0.0, help="factor of Keras' RandAugment")
        alpha = f"alpha of mixup [{HINTS['mix_up']}]"
        add("--mix-up", type=number_in(0.0, math.inf), help=alpha)
        add("--cut-mix", type=share_or_1, default=0.0, help="factor of Keras' CutMix")
        add("--random-erasing", type=share, default=0.0, help="share of the images")
        repeats = "how often an image of an epoch appears in it: repeated augmentation"
        add("--repeats", type=at_least(1), default=1, help=repeats)
        # of the model
        add("--model", choices=tuple(MODELS), help=f"the family, from scratch [{MODEL}]")
        preset = "a KerasHub preset, its name or a folder: fine-tuned, with a new head; takes the "
        preset += "place of all other options of the model but --where"
        add("--preset", help=preset)
        sizes = "a published size; others replace it [digits: 4 layers of 64, else the smallest]"
        add("--size", choices=tuple(SIZES), help=sizes)
        where = "blocks that have --attention, not softmax: all, even, odd, first-half, last-half, "
        where += "first:2, last:2, or numbers such as 0,3 [all]"
        add("--where", default="all", help=where)
        add("--image-size", type=at_least(1), help="side in pixels [of the data or the size]")
        add("--patch", type=at_least(1), help="side of a patch in pixels [of the data or the size]")
        path = "share of the examples that lose a branch of the last block [0]"
        add("--drop-path", type=share, help=path)
        start = "a model.keras of this recipe, also of other images or classes (vit, deit)"
        add("--start-from", help=start)
        norm = "normalise sums, not inputs (vit, deit)"
        add("--post-norm", action="store_true", help=norm)

    def published(self, options: argparse.Namespace) -> dict[str, Any]:
        if not options.published and not options.released:
            return {}
        if options.preset is not None:
            raise UsageError(
                "--published and --released train from scratch: give one of them or --preset"
            )
        settings = dict(RELEASED if options.released else PUBLISHED)
        if options.published:
            settings |= PUBLISHED_SCHEDULES.get(options.model, {})
        if options.model == "swin":
            settings["drop_path"] = 0.3
        if options.size == "deit-small-24":
            settings["dropout"] = 0.2
        if self._is_of_agf(options) and set(options.attention) <= {"softmax", "agf"}:
            settings["where"] = PUBLISHED_AGF[options.dataset][1]
        return settings

    def _is_of_agf(self, options: argparse.Namespace) -> bool:
        """Whether AGF's paper has settings of its own."""
        return options.published and options.dataset in PUBLISHED_AGF

    def refuse(self, options: argparse.Namespace) -> None:
        if options.dataset == "folder" and options.data_dir is None:
            raise UsageError("--dataset folder needs --data-dir with a sub-folder for each class")
        if options.dataset == "digits" and options.data_dir is not None:
            raise UsageError("--data-dir: digits come with scikit-learn; give --dataset")
        if options.preset is not None:
            refuse_beside_preset(options, SET_BY_PRESET)
            return
        if options.model is None:
            options.model = MODEL
        family, _, attentions = MODELS[options.model]
        unknown = [name for name in options.attention if name not in attentions]
        if unknown:
            raise UsageError(
                f"--model {options.model} has attention {','.join(attentions)}; --attention has "
                f"{','.join(unknown)}"
            )
        if options.size is not None and SIZES[options.size].model != family:
            own = ", ".join(name for name, size in SIZES.items() if size.model == family)
            raise UsageError(f"--model {options.model} has the sizes {own}; --size {options.size}")
        if family != "deit" and (options.post_norm or options.start_from is not None):
            flag = "--post-norm" if options.post_norm else "--start-from"
            raise UsageError(f"{flag}: --model {options.model} is made as published, from scratch")
        if options.model == "swin":
            widths = [name for name in WIDTHS if getattr(options, name) is not None]
            if widths:
                raise UsageError(f"{flags(widths)}: --model swin has the sizes of --size only")
            if options.where not in ("all", "even"):
                raise UsageError(f"--where {options.where}: --model swin has all or even")

    def defaults(self, options: argparse.Namespace) -> dict[str, Any]:
        if options.preset is not None:
            choose_backend(options.backend)
            from recipes.common.images.pretrained import preset_of

            preset = preset_of(options.preset)
            return {**FINE_TUNING, "image_size": preset.image_size, "layers": preset.layers}
        source, own = SOURCES[options.dataset], options.size is None
        is_small = own and options.dataset == "digits" and options.model in ("vit", "topological")
        name = None if is_small else MODELS[options.model].size
        size = SMALL if is_small else SIZES[options.size or name]
        return {
            **(OF_DIGITS if options.dataset == "digits" else FROM_SCRATCH),
            "size": name,
            "image_size": source.image_size if own else size.image,
            "patch": source.patch if own and options.model != "swin" else size.patch,
            "layers": size.layers,
            "d_model": size.width,
            "heads": size.heads,
            "feed_forward": size.feed_forward,
            "dropout": 0.0,
            "drop_path": 0.0,
        }

    def finish(self, options: argparse.Namespace) -> None:
        if options.preset is None:
            check_heads(options)
        if options.final_learning_rate > options.learning_rate:
            raise UsageError(
                f"--final-learning-rate {options.final_learning_rate:g} is above --learning-rate "
                f"{options.learning_rate:g}, from which the rate falls to it"
            )
        patched = options.preset is None and options.model != "swin"
        if patched and options.image_size % options.patch:
            raise UsageError(
                f"--image-size {options.image_size} is not a multiple of --patch {options.patch}"
            )
        reader = "tensorflow-datasets" if SOURCES[options.dataset].tfds else "scikit-learn"
        hub = ("keras-hub",) if options.preset is not None else ()
        self.packages = ("tensorflow", reader, *hub)

    def settings(self, options: argparse.Namespace) -> dict[str, Settings]:
        settings = super().settings(options)
        if options.model in ("vit", "deit"):
            tokens = (options.image_size // options.patch) ** 2 + 1
            for name in FILTERED if tokens >= BLOCKWISE_FROM else ():
                settings[name]["attention_path"] = "blockwise"
        return settings

    def folder(self, options: argparse.Namespace) -> str:
        return f"{options.dataset.replace('/', '-')}-{_model_name(options)}"

    def attention_defaults(self, options: argparse.Namespace) -> dict[str, Settings]:
        agf = PUBLISHED_AGF[options.dataset][0] if self._is_of_agf(options) else AGF
        defaults = agf.defaults(one_rate=options.published or options.released)
        if options.preset is None:
            defaults["gfsa"]["order"] = ORDERS[MODELS[options.model].family]
        defaults["topological"] = {RATE: defaults["gfsa"][RATE]}
        if options.preset is not None:  # coefficients have the rate of `convert`
            defaults = {name: {**own, RATE: None} for name, own in defaults.items()}
        return {**defaults, "gfsa_high_pass": defaults["gfsa"]}

    def load(self, options: argparse.Namespace) -> Problem:
        problem: Problem = super().load(options)
        self.model.replaced_layers(options)  # refuses what selects no block
        if options.preset is not None:  # what it cannot have fails before any training
            for attention in options.attention:
                self.model.check_preset(self.trial(problem, attention, options))
        return problem

    def facts(self, problem: Problem, options: argparse.Namespace) -> dict[str, Any]:
        return {
            "dataset": options.dataset,
            "model": _model_name(options),
            "classes": problem.classes,
            "images": {name: len(part) for name, part in problem.splits.items()},
        }

    def title(self, problem: Problem, options: argparse.Namespace) -> str:
        return f"{problem.name}, {_model_name(options)}"

    def write_more(
        self, output: Path, runs: Sequence[Run], best: "keras.Model", problem: Problem, options: Any
    ) -> None:
        from recipes.common.output.image_pictures import write_offsets, write_predictions

        shown = self.model.test_images(problem, SHOWN, options)
        labels = shown.pop("classes")
        predictions = best.predict(shown, verbose=0)
        title = f"{problem.name}: test images and what the best model takes them for"
        rows = (shown["images"], labels, predictions, problem.classes)
        write_predictions(output / "predictions.png", title, *rows)
        topological = [run for run in runs if run.attention == "topological"]
        if topological:
            run = best_run(topological)
            trial = self.trial(problem, run.attention, options, run.seed)
            tables = self.model.tables_of_masks(self.best_model(trial, run.weights))
            title = f"{problem.name}: factors by offset, topological, seed {run.seed}"
            write_offsets(output / "masks.png", title, tables)

    def notes(self, results: dict[str, Any], options: argparse.Namespace) -> list[str]:
        """No note on the best test epoch: the test data are used once, after training."""
        notes = coefficient_notes(results)
        pair = ("topological", "performer")
        difference = paired_difference(results["runs"], "test_accuracy", *pair)
        if difference is not None:
            notes.append(f"topological less performer, with the same seeds: {difference}.")
        if options.published or options.released:
            paper = PAPER if options.model in ("deit", "cait", "swin") else PAPER_OF_TRAINING
            whose = f"the released code of {paper}" if options.released else paper
            notes.append(settings_note(whose, results["published"]["departures"]))
            notes.append(
                "RandAugment, mixup and cutmix are Keras' layers, whose strengths and draws differ "
                "from those of the paper; there is no distillation token."
            )
            notes += absent_note(paper, ("softmax", "gfsa"), results)
        return notes


def _model_name(options: argparse.Namespace) -> str:
    return options.model if options.preset is None else Path(options.preset).name


RECIPE = ImageClassification()

if __name__ == "__main__":
    run_program(RECIPE.main)
