"""`python -m recipes.image_classification`: its options, published settings, what it reports.

Imports no Keras by itself.
"""

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.common.attentions import MULTIPLIER, RATE, PublishedFilter
from recipes.common.command.attention_options import add_attention_options
from recipes.common.command.options import add_run_options, add_shared, departures
from recipes.common.command.parsing import Parser, UsageError, at_least, choose_backend, number_in
from recipes.common.command.program import run_program
from recipes.common.data.presets import refuse_beside_preset
from recipes.common.images.sizes import SIZES, Size
from recipes.common.output.notes import absent_note, coefficient_notes, settings_note
from recipes.common.output.paired import paired
from recipes.common.recipe import Recipe
from recipes.image_classification.data import SOURCES

if TYPE_CHECKING:
    import keras

    from recipes.common.data.chance import Chance
    from recipes.common.training.kept import Run
    from recipes.image_classification.data import Problem

BY_DEFAULT = ("softmax", "gfsa", "p_laplacian", "agf", "performer", "topological")
ATTENTIONS = (*BY_DEFAULT[:2], "gfsa_high_pass", *BY_DEFAULT[2:])
# of each model: its sizes in `SIZES`, the one that is taken beyond digits, the attentions it has
MODELS = {
    "vit": ("deit", "deit-tiny", ATTENTIONS),
    "deit": ("deit", "deit-small", ATTENTIONS),
    "topological": ("deit", "deit-tiny", ("performer", "topological")),
    "cait": ("cait", "cait-xxs24", ATTENTIONS),
    "swin": ("swin", "swin-tiny", ("softmax", "gfsa", "gfsa_high_pass", "p_laplacian")),
}
PAPERS = {"deit": "arXiv 2312.04234", "cait": "arXiv 2312.04234", "swin": "arXiv 2312.04234"}
MODEL = "vit"
WHERE = ("all", "even", "first-half", "last-half")
FILTERED = ("gfsa", "gfsa_high_pass")
BLOCKWISE_FROM = 513  # tokens from which GFSA forms its matrix in blocks of rows
SHOWN = 32  # test images in the picture of predictions
SMALL = Size("deit", 4, 64, 4, 128, patch=2, image=8)  # of digits
FROM_SCRATCH = {"epochs": 30, "learning_rate": 2e-3, "warm_up_epochs": 5.0, "mix_up": 0.3}
OF_DIGITS = {**FROM_SCRATCH, "epochs": 20, "learning_rate": 3e-3}
FINE_TUNING = {"epochs": 5, "learning_rate": 5e-5, "warm_up_epochs": 0.5, "mix_up": 0.0}
TOLD = {
    name: f"{FROM_SCRATCH[name]:g}; of digits {OF_DIGITS[name]:g}; with --preset {x:g}"
    for name, x in FINE_TUNING.items()
}
# what a preset has already
SET_BY_PRESET = (
    *("model", "size", "image_size", "patch", "layers", "d_model", "heads", "feed_forward"),
    *("dropout", "drop_path", "start_from", "post_norm"),
)

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


class ImageClassification(Recipe):
    """Attention layers in image models."""

    name = "image_classification"
    description = (
        "Trains and compares attention layers in image models; writes a table, curves, pictures "
        "of masks and predictions, and the best model for serving."
    )
    attentions = ATTENTIONS

    def add_options(self, parser: Parser) -> None:
        add = parser.add_argument
        add("--dataset", choices=tuple(SOURCES), default="digits", help="what is classified")
        told = "TFDS' folder; of --dataset folder, that with a sub-folder for each class"
        add("--data-dir", type=Path, help=told)
        seed = "seed of the division into training, validation and test data, where there is none"
        add("--data-seed", type=at_least(0), default=0, help=seed)
        for name, whose in (("published", "papers'"), ("released", "GFSA code's")):
            add(f"--{name}", action="store_true", help=f"the {whose} training of DeiT, CaiT, Swin")
        folder = "image_classification/<dataset>-<model>"
        add_run_options(parser, self.attentions, BY_DEFAULT, folder)
        _add_training(parser.add_argument_group("training"))
        _add_augmentation(parser.add_argument_group("changes of training images"))
        _add_model(parser.add_argument_group("model"))
        rate = {RATE: f"{MULTIPLIER:g}; with --preset 100; with --published and --released 1"}
        rate["order"] = "gfsa: 3, of CaiT 4; agf: 4"
        add_attention_options(parser.add_argument_group("attentions"), self.attentions, rate)

    def published(self, options: argparse.Namespace) -> dict[str, Any]:
        if options.published and options.released:
            raise UsageError("--published and --released: give one of the two")
        if options.preset is not None and (options.published or options.released):
            raise UsageError(
                "--published and --released train from scratch: give one of them or --preset"
            )
        if not options.published and not options.released:
            return {}
        found = dict(RELEASED if options.released else PUBLISHED)
        if options.model == "swin":
            found["drop_path"] = 0.3
        return found

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
        family, _, known = MODELS[options.model]
        unknown = [name for name in options.attention if name not in known]
        if unknown:
            raise UsageError(
                f"--model {options.model} has attention {','.join(known)}; --attention has "
                f"{','.join(unknown)}"
            )
        if options.size is not None and SIZES[options.size].model != family:
            own = ", ".join(name for name, size in SIZES.items() if size.model == family)
            raise UsageError(f"--model {options.model} has the sizes {own}; --size {options.size}")
        if options.post_norm and options.model in ("cait", "swin"):
            raise UsageError(f"--post-norm: --model {options.model} is normalised as published")
        if options.start_from is not None and options.model in ("cait", "swin"):
            raise UsageError(f"--start-from: --model {options.model} starts from scratch")
        if options.model == "swin":
            for name in ("layers", "d_model", "heads", "feed_forward"):
                if getattr(options, name) is not None:
                    flag = f"--{name.replace('_', '-')}"
                    raise UsageError(f"{flag}: --model swin has the sizes of --size only")
            if options.where not in ("all", "even"):
                raise UsageError(f"--where {options.where}: --model swin has all or even")

    def defaults(self, options: argparse.Namespace) -> dict[str, Any]:
        if options.preset is not None:
            choose_backend(options.backend)
            from recipes.common.images.pretrained import preset_of

            found = preset_of(options.preset)
            return {**FINE_TUNING, "image_size": found.image_size, "layers": found.layers}
        source, own = SOURCES[options.dataset], options.size is None
        is_small = own and options.dataset == "digits" and options.model in ("vit", "topological")
        name = None if is_small else MODELS[options.model][1]
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
        if options.preset is None and options.d_model % options.heads:
            raise UsageError(
                f"--d-model {options.d_model} cannot be shared out over --heads {options.heads}"
            )
        patched = options.preset is None and options.model != "swin"
        if patched and options.image_size % options.patch:
            raise UsageError(
                f"--image-size {options.image_size} is not a multiple of --patch {options.patch}"
            )
        reader = "tensorflow-datasets" if SOURCES[options.dataset].tfds else "scikit-learn"
        hub = ("keras-hub",) if options.preset is not None else ()
        self.packages = ("tensorflow", reader, *hub)
        if options.patience is None:
            options.patience = options.epochs

    def settings(self, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
        found = super().settings(options)
        if options.model in ("vit", "deit"):
            tokens = (options.image_size // options.patch) ** 2 + 1
            for name in FILTERED if tokens >= BLOCKWISE_FROM else ():
                found[name]["attention_path"] = "blockwise"
        return found

    def folder(self, options: argparse.Namespace) -> str:
        return f"{options.dataset.replace('/', '-')}-{_model_name(options)}"

    def attention_defaults(self, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
        # with a preset, that of `convert`
        own_rate = options.published or options.released or options.preset is not None
        found = AGF.defaults(one_rate=own_rate)
        if options.preset is None:
            found["gfsa"]["order"] = ORDERS[MODELS[options.model][0]]
        found["gfsa_high_pass"] = found["gfsa"]
        return {**found, "topological": {RATE: None if own_rate else MULTIPLIER}}

    def load(self, options: argparse.Namespace) -> "Problem":
        problem: Problem = super().load(options)
        if options.preset is not None:  # what it cannot have fails before any training
            settings = self.settings(options)
            for attention in options.attention:
                self.model.check_preset(problem, attention, settings[attention], options)
        return problem

    def chance(self, problem: "Problem") -> "Chance | None":
        from recipes.common.data.chance import of_accuracy

        known = {name: part.labels for name, part in problem.splits.items()}
        known = {name: labels for name, labels in known.items() if labels is not None}
        return of_accuracy(**known) if known else None

    def facts(self, problem: "Problem", options: argparse.Namespace) -> dict[str, Any]:
        return {
            "dataset": options.dataset,
            "model": _model_name(options),
            "classes": problem.classes,
            "images": {name: len(part) for name, part in problem.splits.items()},
        }

    def title(self, problem: "Problem", options: argparse.Namespace) -> str:
        return f"{problem.name}, {_model_name(options)}"

    def write_more(
        self, output: Path, runs: "list[Run]", best: "keras.Model", problem: "Problem", options: Any
    ) -> None:
        from recipes.common.output.image_pictures import write_offsets, write_predictions
        from recipes.common.training.runs import best_run

        shown = self.model.test_images(problem, SHOWN, options)
        labels = shown.pop("classes")
        found = best.predict(shown, verbose=0)
        title = f"{problem.name}: test images and what the best model takes them for"
        given = (shown["images"], labels, found, problem.classes)
        write_predictions(output / "predictions.png", title, *given)
        topological = [run for run in runs if run.attention == "topological"]
        if topological:
            run = best_run(topological)
            own = self.settings(options)["topological"]
            model = self.best_model(run, own, problem, options)
            title = f"{problem.name}: factors by offset, topological, seed {run.seed}"
            write_offsets(output / "masks.png", title, self.model.tables_of_masks(model, options))

    def notes(self, results: dict[str, Any], options: argparse.Namespace) -> list[str]:
        """There is no best test epoch: the test is taken once, after training."""
        notes = coefficient_notes(results)
        difference = paired(results["runs"], "test_accuracy", "topological", "performer")
        if difference is not None:
            notes.append(f"topological less performer, with the same seeds: {difference.told()}.")
        if options.published or options.released:
            paper = PAPERS.get(options.model, "arXiv 2012.12877")
            whose = f"the released code of {paper}" if options.released else paper
            notes.append(settings_note(whose, results["published"]["departures"]))
            notes.append(
                "RandAugment, mixup and cutmix are Keras' layers, whose strengths and draws differ "
                "from those of the paper; there is no distillation token."
            )
            reported = ("softmax", "gfsa")
            notes += absent_note(paper, reported, [row["attention"] for row in results["table"]])
        return notes

    def departures(self, options: argparse.Namespace) -> list[str]:
        return departures(options, self.published(options))


def _model_name(options: argparse.Namespace) -> str:
    return options.model if options.preset is None else Path(options.preset).name


def _add_training(group: argparse._ArgumentGroup) -> None:
    training = {"epochs": None, "batch_size": 64, "learning_rate": None, "validation_fraction": 0.2}
    shared = {**training, "patience": None, "precision": "float32"}
    add_shared(group, shared, {**TOLD, "patience": "all"})
    add = group.add_argument
    share = number_in(0.0, 1.0)
    add("--final-learning-rate", type=share, default=0.0, help="at the end of the cosine")
    warm_up = f"epochs until the peak of the learning rate [{TOLD['warm_up_epochs']}]"
    add("--warm-up-epochs", type=number_in(0.0, math.inf), help=warm_up)
    add("--weight-decay", type=share, default=0.05, help="AdamW's")
    add("--label-smoothing", type=share, default=0.0, help="share that all classes get")
    ema = "momentum of the weights' moving average, which is validated and kept; 0: none"
    add("--ema", type=share, default=0.0, help=ema)
    add("--accumulate", type=at_least(1), default=1, help="batches of one update of the weights")


def _add_augmentation(group: argparse._ArgumentGroup) -> None:
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


def _add_model(group: argparse._ArgumentGroup) -> None:
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


RECIPE = ImageClassification()

if __name__ == "__main__":
    run_program(RECIPE.main)
