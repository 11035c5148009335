"""`python -m recipes.image_classification`: which options go together, what it reports.

Imports no Keras by itself.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.common.attentions import MULTIPLIER, RATE
from recipes.common.command.attention_options import add_attention_options
from recipes.common.command.options import add_run_options, departures
from recipes.common.command.parsing import Parser, UsageError, at_least, choose_backend
from recipes.common.command.program import run_program
from recipes.common.data.presets import refuse_beside_preset
from recipes.common.images.defaults import (
    AGF,
    ATTENTIONS,
    BY_DEFAULT,
    FINE_TUNING,
    FROM_SCRATCH,
    MODEL,
    MODELS,
    OF_DIGITS,
    ORDERS,
    PAPERS,
    PUBLISHED,
    RELEASED,
    SMALL,
)
from recipes.common.images.options import (
    add_augmentation_options,
    add_model_options,
    add_training_options,
)
from recipes.common.images.sizes import SIZES
from recipes.common.output.notes import absent_note, coefficient_notes, settings_note
from recipes.common.output.paired import paired
from recipes.common.recipe import Recipe
from recipes.image_classification.data import SOURCES

if TYPE_CHECKING:
    import keras

    from recipes.common.data.chance import Chance
    from recipes.common.training.kept import Run
    from recipes.image_classification.data import Problem

FILTERED = ("gfsa", "gfsa_high_pass")
BLOCKWISE_FROM = 513  # tokens from which GFSA forms its matrix in blocks of rows
SHOWN = 32  # test images in the picture of predictions
# what a preset has already
SET_BY_PRESET = (
    *("model", "size", "image_size", "patch", "layers", "d_model", "heads", "feed_forward"),
    *("dropout", "drop_path", "start_from", "post_norm"),
)


class ImageClassification(Recipe):
    """Attention layers in image models."""

    name = "image_classification"
    description = (
        "Trains and compares attention layers in image models; writes a table, curves, pictures "
        "of masks and predictions, and the best model for serving."
    )
    attentions = ATTENTIONS
    data_files = (
        "the folder of tensorflow-datasets; "
        "for --dataset folder, one with a sub-folder for each class"
    )

    def add_options(self, parser: Parser) -> None:
        add = parser.add_argument
        add("--dataset", choices=tuple(SOURCES), default="digits", help="what is classified")
        add("--data-dir", type=Path, help=self.data_files)
        seed = "seed of the division into training, validation and test data, where there is none"
        add("--data-seed", type=at_least(0), default=0, help=seed)
        for name, whose in (("published", "papers'"), ("released", "GFSA code's")):
            add(f"--{name}", action="store_true", help=f"the {whose} training of DeiT, CaiT, Swin")
        folder = "image_classification/<dataset>-<model>"
        add_run_options(parser, self.attentions, BY_DEFAULT, folder)
        add_training_options(parser.add_argument_group("training"))
        add_augmentation_options(parser.add_argument_group("changes of training images"))
        add_model_options(parser.add_argument_group("model"))
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
        found = AGF.defaults(one_rate=options.published or options.released)
        if options.preset is None:
            found["gfsa"]["order"] = ORDERS[MODELS[options.model].family]
        found["topological"] = {RATE: found["gfsa"][RATE]}
        if options.preset is not None:  # coefficients have the rate of `convert`
            found = {name: {**own, RATE: None} for name, own in found.items()}
        return {**found, "gfsa_high_pass": found["gfsa"]}

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


RECIPE = ImageClassification()

if __name__ == "__main__":
    run_program(RECIPE.main)
