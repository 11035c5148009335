"""What every recipe answers alike: to wrong options and folders, one class, a second start."""

import builtins
import importlib.util
import itertools
import re
import shlex
import subprocess
import sys
from argparse import Namespace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import scipy.io.wavfile

from keras_graphattn import filters
from keras_graphattn.version import INSTALL_EXTRA
from recipes.common.attentions import ATTENTIONS, JACOBI, attention_of, layer_arguments
from recipes.common.command.checks import check_settings, refuse_to_remove
from recipes.common.command.parsing import UsageError, flags
from recipes.common.data import images
from recipes.common.data.sources import load_tfds
from recipes.common.storage import LOCK, locked
from recipes.common.training.runs import KeepRun
from recipes.results import all_results
from recipes.time_series import data as time_series_data
from tests.graphs.test_readers import write_planetoid
from tests.numerics import BACKEND
from tests.recipes.command_line import (
    ROOT,
    assert_one_error_line,
    assert_validation_chooses_the_epoch,
    history_of,
    results_of,
)
from tests.recipes.conftest import write_images, write_ts
from tests.recipes.models import recipe_of

RATE = "coefficient-learning-rate-multiplier"
OTHER = "torch" if BACKEND != "torch" else "jax"
NAMES = sorted(path.parent.name for path in (ROOT / "recipes").glob("*/__main__.py"))
HUB = ("causal_lm", "code_classification", "text_classification")
NEEDS = {**dict.fromkeys(HUB, ("keras_hub",)), "speech_recognition": ("jiwer", "soundfile")}
COMPILES_LONG = ("speech_recognition",)  # a search, an encoder of many parts
RECIPES = [
    pytest.param(
        name,
        marks=[
            pytest.mark.skipif(
                not all(map(importlib.util.find_spec, NEEDS.get(name, ()))),
                reason=f"needs {' and '.join(NEEDS.get(name, ()))}",
            ),
            *[pytest.mark.slow_on("jax", "tensorflow")] * (name in COMPILES_LONG),
        ],
    )
    for name in NAMES
]


def time_series(folder, one_class):
    random = np.random.default_rng(0)
    for split in ("TRAIN", "TEST"):
        path = folder / f"Tiny_{split}.ts"
        write_ts(path, random, 6)
        if one_class:
            path.write_text(path.read_text().replace(":high", ":low"))
    return "--dataset Tiny --d-model 4 --heads 2 --key-dim 2"


def write_lines(folder, names, line, one_class, count=30):
    """A file of each name, whose lines are those of a number and a class."""
    for name in names:
        lines = [line(number, int(one_class or number % 2)) for number in range(count)]
        (folder / name).write_text("\n".join(lines) + "\n")


def text_classification(folder, one_class):
    def line(n, label):
        return f"made\t{label}\t\tword{n % 5} and word{n % 3}."

    write_lines(folder, ["in_domain_train.tsv", "in_domain_dev.tsv"], line, one_class)
    return "--vocabulary 40 --layers 1 --d-model 4 --heads 2 --feed-forward 4"


def code_classification(folder, one_class):
    def line(n, label):
        return f'{{"func": "f{n % 5}(x) {{ return g{n % 3}(x); }}", "target": {label}}}'

    write_lines(folder, [f"{part}.jsonl" for part in ("train", "valid", "test")], line, one_class)
    return "--task defect --vocabulary 270 --layers 1 --d-model 4 --heads 2 --feed-forward 4"


def long_range_arena(folder, one_class):
    def line(n, label):
        return f"{label}.0\ta\tb\ttext {n}\tother"

    names = [f"new_aan.{part}.tsv" for part in ("train", "eval", "test")]
    write_lines(folder, names, line, one_class, 12)
    return "--task retrieval --d-model 4 --heads 2 --key-dim 2"


def causal_lm(folder, one_class):
    (folder / "text.txt").write_text("0 and 1 make 1\n" * 60)
    return "--layers 1 --d-model 4 --heads 2 --feed-forward 4 --context 8 --warm-up 2"


OF_GRAPHS = "--heads 2 --key-dim 2 --feed-forward 4 --cache-dir"


def motif_detection(folder, one_class):
    sizes = "--train-examples 8 --evaluation-examples 4"
    return f"--task induced_cycle {sizes} {OF_GRAPHS} {folder / 'cache'}"


def graph_classification(folder, one_class):
    def line(n, label):  # two nodes and an edge
        return ("24\n" if n == 0 else "") + f"2 {label}\n0 1 1\n{n % 2} 1 0"

    write_lines(folder, ["Tiny.txt"], line, one_class, 24)
    return f"--dataset Tiny {OF_GRAPHS} {folder / 'cache'}"


def graph_regression(folder, one_class):
    sizes = "--train-examples 4 --evaluation-examples 2 --layers 1"
    return f"{sizes} {OF_GRAPHS} {folder / 'cache'}"


def node_classification(folder, one_class):
    labels = np.eye(2, dtype="int32")[[0, 0 if one_class else 1, 1]]
    write_planetoid(folder, y=labels[:2], ally=labels)
    return f"--dataset made --heads 2 --key-dim 2 --cache-dir {folder / 'cache'}"


def image_classification(folder, one_class):
    write_images(folder, classes=("bird",) if one_class else ("bird", "cat"), count=12)
    sizes = "--layers 1 --d-model 4 --heads 2 --feed-forward 4 --image-size 4 --patch 2"
    return f"--dataset folder {sizes} --warm-up-epochs 0"


def speech_recognition(folder, one_class):
    random = np.random.default_rng(0)
    for speaker, digit in itertools.product("abc", range(10)):
        samples = random.integers(-9000, 9000, 1600).astype("int16")
        scipy.io.wavfile.write(folder / f"{digit}_{speaker}_0.wav", 8000, samples)
    sizes = "--layers 1 --d-model 4 --heads 2 --feed-forward 4 --decoder-feed-forward 4"
    sizes += " --channels 2,2,2 --mel-bins 8 --train-examples 8 --buckets 1 --beam 2 --warm-up 2"
    sizes += " --served-seconds 1"
    return f"--dataset digits {sizes}"


MADE = ("motif_detection", "graph_regression")  # their data are made, not read
MAKERS = (
    *(motif_detection, graph_classification, node_classification, graph_regression),
    *(time_series, text_classification, code_classification, long_range_arena),
    *(causal_lm, image_classification, speech_recognition),
)
DATA = {make.__name__: make for make in MAKERS}


def arguments_of(name, folder, one_class=False):
    """Options of a tiny model on data made in a folder: one epoch, softmax, `output` in it."""
    folder = folder / "data"
    folder.mkdir(exist_ok=True)
    text = DATA[name](folder, one_class)
    shared = "--epochs 1 --attention softmax --verbose 0"
    if name not in MADE:
        shared += f" --data-dir {folder}"
    return [*text.split(), *shared.split(), "--output", str(folder.parent / "output")]


@pytest.mark.parametrize("name", RECIPES)
def test_a_run_prints_nothing_odd_and_is_not_made_twice(
    name, tmp_path, capfd, caplog, recwarn, monkeypatch
):
    recipe = recipe_of(name)
    arguments = arguments_of(name, tmp_path)
    arguments[arguments.index("--verbose") + 1] = "1"  # the progress bar
    if "agf" in recipe.attentions:
        arguments[arguments.index("--attention") + 1] = "softmax,agf"
    if BACKEND == "torch" and recipe.saved_model:
        arguments.append("--skip-saved-model")  # another process would write it, in TensorFlow
    output = tmp_path / "output"
    assert recipe.main(arguments) == 0
    printed = capfd.readouterr()
    lines = f"{printed.out}\n{printed.err}\n{caplog.text}"
    assert re.findall(r"Traceback.*|.*\bnan\b.*", lines) == []
    ours = [
        one for one in recwarn if {"keras_graphattn", "recipes"} & set(Path(one.filename).parts)
    ]
    assert [str(one.message) for one in ours] == []
    assert (output / "results.png").read_bytes().startswith(b"\x89PNG")
    assert keras.saving.load_model(output / "model.keras", compile=False).weights

    before = (output / "results.json").read_bytes()
    monkeypatch.setattr(keras.Model, "fit", lambda *args, **kwargs: pytest.fail("trained again"))
    assert recipe.main(arguments) == 0
    again = capfd.readouterr().out
    assert again.count("finished before") == len(results_of(output)["runs"])
    assert again.splitlines()[-1] == f"written to {output}"
    assert (output / "results.json").read_bytes() == before
    words = ["other settings", "learning_rate", "0.015)", "--overwrite"]
    assert_one_error_line(recipe.main, [*arguments, "--learning-rate", "0.015"], words, capfd)
    assert (output / "results.json").read_bytes() == before


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("name", [one for one in RECIPES if one.values[0] not in MADE])
def test_training_that_was_broken_off_goes_on_to_the_same_end(name, tmp_path, monkeypatch):
    """`test_resume` kills a run between any two steps."""
    recipe = recipe_of(name)
    arguments = [*arguments_of(name, tmp_path), "--epochs", "2"]
    if recipe.saved_model:
        arguments.append("--skip-saved-model")
    ends = KeepRun.on_epoch_end

    def break_off(self, epoch, logs):
        ends(self, epoch, logs)
        raise KeyboardInterrupt

    whole, broken = ([*arguments, "--output", str(tmp_path / part)] for part in "ab")
    assert recipe.main(whole) == 0
    assert_validation_chooses_the_epoch(tmp_path / "a")
    with monkeypatch.context() as patch:
        patch.setattr(KeepRun, "on_epoch_end", break_off)
        assert recipe.main(broken) == 130
    (run,) = results_of(tmp_path / "a")["runs"]
    assert len(history_of(tmp_path / "b", run)) == 1
    assert recipe.main(broken) == 0
    expected, history = (history_of(tmp_path / part, run) for part in "ab")
    assert len(expected) == 2
    for row, other in zip(expected, history, strict=True):
        assert other == pytest.approx(row, rel=1e-4, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_all_attentions_stand_in_one_table_and_the_best_model_is_served(name, tmp_path):
    recipe, output = recipe_of(name), tmp_path / "output"
    asked = ["--attention", ",".join(recipe.attentions)]
    assert recipe.main([*arguments_of(name, tmp_path), *asked]) == 0
    table = results_of(output)["table"]
    assert [row["attention"] for row in table] == list(recipe.attentions)
    assert (output / "saved_model" / "1" / "saved_model.pb").exists() == recipe.saved_model


# Options of recipes that read files, beside the folder of the files.
FROM_FILES = {
    "causal_lm": [],
    "code_classification": ["--task", "defect"],
    "graph_classification": ["--dataset", "Tiny"],
    "graph_regression": ["--dataset", "zinc"],
    "image_classification": ["--dataset", "folder"],
    "long_range_arena": ["--task", "retrieval"],
    "node_classification": ["--dataset", "made"],
    "speech_recognition": ["--dataset", "digits"],
    "text_classification": [],
    "time_series": [],
}


def data_options(name, folder="x"):
    return [*FROM_FILES[name], "--data-dir", str(folder)] if name in FROM_FILES else []


# Files of recipes whose model has more parts than fit in one.
MORE = {"code_classification": {"case_study.py", "encoder_decoders.py"}}
MORE |= {"speech_recognition": {"batches.py", "decoder.py", "encoders.py", "features.py"}}
MORE["speech_recognition"] |= {"language_model.py", "language_model_training.py", "search.py"}
MORE["speech_recognition"] |= {"pretrained.py", "transcripts.py"}


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_is_a_program_of_the_same_outline(name):
    assert name in DATA, f"make tiny data for {name}"
    folder = ROOT / "recipes" / name
    read = {path.name for path in folder.iterdir() if path.is_file()} - {"__init__.py"}
    assert read - MORE.get(name, set()) == {"README.md", "__main__.py", "data.py", "model.py"}
    assert recipe_of(name).name == name
    code = f"import sys, recipes.{name}.__main__; assert 'keras' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_without_the_extra_a_recipe_says_what_to_install():
    hide = "import runpy, sys; sys.modules['filelock'] = None"
    code = f"{hide}; runpy.run_module('recipes.causal_lm', run_name='__main__')"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.count("\n") == 1
    assert "filelock" in ran.stderr
    assert 'pip install -e ".[recipes]"' in ran.stderr


# What every recipe refuses.
WRONG_EVERYWHERE = [
    ("--seeds 1,1", ["--seeds", "twice"]),
    ("--seeds 0.5", ["--seeds", "whole numbers"]),
    ("--seeds 0,one", ["0,one", "whole numbers"]),
    ("--seeds -1", ["-1"]),
    ("--attention softmax,softmax", ["--attention", "twice"]),
    ("--attention nothing", ["--attention", "nothing", "softmax"]),
    ("--attention softmax,", ["''"]),
    ("--epochs 0", ["--epochs", "at least 1"]),
    ("--epochs 2.5", ["--epochs", "2.5"]),
    ("--batch-size 0", ["--batch-size", "at least 1"]),
    ("--learning-rate inf", ["--learning-rate", "inf"]),
    ("--learning-rate 0", ["--learning-rate", "above 0"]),
    ("--precision float8", ["--precision", "float8"]),
    ("--verbose 5", ["--verbose", "5"]),
    ("--distribute pipeline", ["--distribute", "data"]),
    ("--unheard-of", ["--unheard-of"]),
    (f"--backend {OTHER}", [BACKEND, OTHER]),
    *([("--distribute", ["error: --distribute"])] if BACKEND == "torch" else []),
]

# What one recipe refuses.
WRONG = {
    "time_series": [
        ("--attention softmax,longformer", ["longformer", "softmax, linear, performer, linformer"]),
        ("--attention linear --landmarks 8", ["option of linformer and nystromformer", "linear"]),
        ("--attention linformer --landmarks 0", ["--landmarks", "at least 1"]),
        ("--attention linformer --no-value-convolution", ["--value-convolution", "nystromformer"]),
        ("--order 0", ["--order", "'0'", "at least 1"]),
        ("--attention agf --alpha -1 --beta -1", ["divides by zero", "alpha=-1.0"]),
        ("--attention agf --filter legendre --alpha 0.5", ["alpha", "legendre"]),
        ("--attention agf --alpha nan", ["--alpha", "'nan'", "finite"]),
        ("--attention gfsa --constant inf", ["--constant", "'inf'", "finite"]),
        ("--attention softmax --order 2", ["--order", "agf and gfsa", "softmax"]),
        ("--attention gfsa --orthogonality-weight 1", ["option of agf, agf_ones and agf_", "gfsa"]),
        ("--attention softmax --learned-constant", ["--learned-constant", "agf"]),
        ("--published", ["--published", "Handwriting", "Tiny"]),
        ("--validation-fraction 1", ["--validation-fraction", "below 1"]),
        ("--dropout 1", ["--dropout"]),
        ("--attention gfsa --order 2,100000", ["--attention gfsa", "`order`", "100000"]),
        ("--attention gfsa --filter chebyshev --start twicing --order 1,3", ["twicing"]),
        ("--dataset Tinny", ["--data-dir", "Tinny_TRAIN.ts"]),
    ],
    "long_range_arena": [
        ("--task poetry", ["--task", "poetry"]),
        ("--preset huge", ["--preset", "huge"]),
        ("--task listops --data-dir x", ["--data-dir", "made"]),
        ("--warm-up -1", ["--warm-up"]),
        ("--steps-per-epoch 1", ["--steps-per-epoch"]),
    ],
    "text_classification": [
        ("--task poetry", ["--task", "poetry"]),
        ("--exponents 1.5", ["--exponents", "p_laplacian"]),
        ("--preset minilm", ["--vocabulary", "minilm"]),
        ("--d-model 9", ["--d-model 9", "--heads 2"]),
        ("--attention gfsa --where last:9", ["last:9"]),
        ("--exponents 0.5 --attention p_laplacian", ["--exponents", "0.5"]),
        ("--validation-fraction 0.001", ["--validation-fraction"]),
        ("--attention gfsa --start high_pass --constant 0.1", ["--start high_pass", "--constant"]),
    ],
    "code_classification": [
        ("--task poetry", ["--task", "poetry"]),
        ("--task synthetic", ["--data-dir", "made, not read"]),
        ("--preset codebert", ["--vocabulary", "codebert"]),
        ("--d-model 9", ["--d-model 9", "--heads 2"]),
        ("--attention gfsa --where last:9", ["last:9"]),
        ("--task bugs2fix --published", ["--published", "defect and clone", "bugs2fix"]),
        ("--task clone", ["no data.jsonl"]),
        ("--vocabulary 260", ["--vocabulary must be at least 261", "260"]),
    ],
    "causal_lm": [
        ("--attention gfsa --feature-map elu", ["--feature-map", "masked_kernel"]),
        ("--attention p_laplacian --p 1.5,2,2.5", ["--exponents has 3", "--heads 2"]),
        ("--attention p_laplacian --p 0.5", ["--p", "at least 1"]),
        ("--stride 17", ["--stride 17", "--context 8"]),
        ("--heads 3", ["--d-model 4", "--heads 3"]),
        ("--context 2000", ["train text has 810", "--context 2000"]),
        ("--prompt 01234567", ["--prompt has 8", "--context 8"]),
        ("--warm-up 7", ["--warm-up 7", "the 7 steps"]),
        ("--attention gfsa --where 0,", ["'0,'"]),
        ("--tokens preset", ["--tokens preset", "--preset"]),
        ("--preset nowhere", ["--layers", "sizes of --preset nowhere"]),
        ("--attention gfsa --where last:9", ["last:9"]),
        ("--attention differential --where even", ["--where even", "differential", "all layers"]),
        ("--published gfsa", ["--published gfsa", "wikitext-2", "text"]),
        ("--dataset ptb", ["no ptb.train.txt"]),
    ],
    "motif_detection": [
        ("--task star", ["--task", "star"]),
        ("--train-examples 7", ["even", "7"]),
        ("--walks 0", ["--walks"]),
        ("--feature-map relu --attention gcn", ["--feature-map", "graph_masked_kernel"]),
        ("--attention gat --last-heads 3 --heads 2 --key-dim 2", ["--last-heads must divide"]),
        ("--attention edges --order 2,3", ["--order is an option of a filter", "--filter"]),
        ("--attention edges --start high_pass", ["--start is an option of a filter"]),
        ("--attention edges --expander-degree 3", ["--expander-degree", "even"]),
        ("--attention edges --filter jacobi --alpha nan", ["--alpha", "nan"]),
    ],
    "graph_classification": [
        ("--dataset NCI1", ["NCI1", "cannot be read", "NCI1.txt"]),
        ("--dataset made", ["--data-dir", "made, not read"]),
        ("--graphs 60", ["--graphs"]),
    ],
    "graph_regression": [
        ("--dataset zinc", ["--train-examples"]),
        ("--data-dir x", ["--data-dir", "made, not read"]),
        ("--published", ["--published", "--dataset zinc"]),
    ],
    "node_classification": [
        ("--dataset cora", ["cora", "cannot be read", "ind.cora.x"]),
        ("--dataset karate", ["--data-dir", "no files"]),
        ("--batch-size 2", ["--batch-size", "one graph"]),
    ],
    "speech_recognition": [
        ("--dataset mozilla", ["--dataset", "digits"]),
        ("--dataset synthetic", ["--data-dir", "made, not read"]),
        ("--dataset folder", ["--train-examples", "for --dataset synthetic or digits"]),
        ("--sampling-rate 16000", ["--sampling-rate", "8000"]),
        ("--channels 4,4", ["--channels", "3 numbers", "4,4"]),
        ("--heads 3", ["--d-model 4", "--heads 3"]),
        ("--time-masks 2", ["--time-masks", "two whole numbers"]),
        ("--noise 40,5", ["--noise", "two rising numbers"]),
        ("--language-model x.keras", ["--language-model x.keras is no file"]),
        ("--ctc-weight 1.5", ["--ctc-weight"]),
        ("--attention p_laplacian --exponents 1.5,2,3", ["--exponents has 3", "--heads"]),
    ],
    "image_classification": [
        ("--dataset mnist", ["--dataset", "digits"]),
        ("--dataset digits", ["--data-dir", "scikit-learn"]),
        ("--model swin --attention softmax,agf", ["--model swin", "p_laplacian", "agf"]),
        ("--model topological", ["performer,topological", "softmax"]),
        ("--model cait --size deit-tiny", ["--size deit-tiny", "cait-s24"]),
        ("--model swin --layers 3", ["--layers", "--size"]),
        ("--model cait --post-norm", ["--post-norm", "cait"]),
        ("--patch 3", ["--image-size 4", "--patch 3"]),
        ("--attention gfsa --where 0,9", ["--where 0,9", "out of range"]),
        ("--d-model 10 --heads 4", ["--d-model 10", "--heads 4"]),
        ("--published --released", ["--published", "--released", "one of the two"]),
        ("--attention softmax --feature-map relu", ["--feature-map", "performer"]),
        ("--crop 0", ["--crop", "above 0"]),
    ],
}


@pytest.mark.parametrize("name", RECIPES)
def test_wrong_options_are_one_line(name, tmp_path, capsys):
    arguments = arguments_of(name, tmp_path)
    for wrong, words in [*WRONG_EVERYWHERE, *WRONG.get(name, [])]:
        assert_one_error_line(recipe_of(name).main, [*arguments, *wrong.split()], words, capsys)
        assert not (tmp_path / "output").exists()  # found out before anything was written


# Options that others leave without an effect.
IDLE = {
    "time_series": [
        ("--patience 3 --validation-fraction 0", ["--patience", "with --validation-fraction 0"]),
        ("--published --patience 50", ["--patience", "with --validation-fraction 0"]),
        (f"--attention performer --{RATE} 3", [RATE, "performer"]),
    ],
    "long_range_arena": [
        ("--task retrieval --data-dir x --data-seed 1", ["--data-seed", "with --task retrieval"]),
        ("--task image --max-length 100", ["--max-length", "with --task image"]),
        (f"--attention masked_kernel --mask none --{RATE} 3", [RATE, "with --mask none"]),
    ],
    "text_classification": [
        ("--attention softmax --where even", ["--where", "with --attention softmax"]),
        (
            "--attention p_laplacian --coefficient-learning-rate 1",
            ["p_laplacian; it is for --attention gfsa or scaled_high_frequency"],
        ),
    ],
    "code_classification": [
        ("--task defect --data-dir x --data-seed 1", ["--data-seed", "for --task synthetic or"]),
        (
            "--task clone --data-dir x --validation-fraction 0.2",
            ["--validation-fraction has no effect with --task clone"],
        ),
    ],
    "causal_lm": [("--attention softmax --where even", ["--where", "--attention softmax"])],
    "motif_detection": [
        ("--attention gat --walks 9", ["--walks", "gat; it is for --attention graph_kernel"]),
        ("--linear-head --feed-forward 8", ["--feed-forward has no effect with --linear-head"]),
        ("--published --feed-forward 8", ["--feed-forward has no effect with --linear-head"]),
        ("--attention gcn --sgc-units 40", ["--sgc-units", "it is for --attention sgc"]),
        ("--task induced_cycle --base-nodes 200", ["--base-nodes", "with --task induced_cycle"]),
        ("--layers 1 --last-heads 2", ["--last-heads", "with --layers 1"]),
        ("--attention gcn,gin --last-heads 2", ["--last-heads", "with --attention gcn,gin"]),
        ("--choose-by last_epoch --patience 5", ["--patience", "with --choose-by last_epoch"]),
        (f"--attention edges --{RATE} 3", [RATE, "without --filter"]),
        (f"--attention graph_masked_kernel --{RATE} 3", [RATE, "graph_masked_kernel"]),
    ],
    "graph_classification": [
        ("--dataset NCI1 --graphs 60", ["--graphs", "for --dataset made"]),
        ("--degrees", ["--degrees", "with --dataset made"]),
        ("--attention gat --released-form", ["--released-form", "for --attention graph_kernel"]),
        ("--linear-head --relu-head", ["--relu-head has no effect with --linear-head"]),
        ("--attention deep_multisets --layers 3", ["--layers", "with --attention deep_multisets"]),
        ("--attention molecular_fingerprint --no-skip", ["--skip", "molecular_fingerprint"]),
    ],
    "graph_regression": [
        ("--dataset zinc --train-examples 9", ["--train-examples", "for --dataset made or pcq"]),
        ("--evaluation-examples 9 --dataset zinc", ["--evaluation-examples"]),
        ("--validation-fraction 0", ["--validation-fraction", "for --dataset pcqm4m"]),
        ("--dataset zinc --attention gcn --data-seed 1", ["--data-seed", "zinc", "or --attention"]),
        ("--attention gcn --bias grit", ["--bias", "for --attention softmax or gfsa"]),
        ("--attention contra_norm --hops 2", ["--hops", "for --attention softmax or gfsa"]),
        ("--bias grit --hops 2", ["--hops has no effect with --bias grit; it is for --bias grap"]),
        ("--bias decay --max-distance 2", ["--max-distance", "with --bias decay"]),
        ("--bias-steps 2", ["--bias-steps", "with --bias graphormer; it is for --bias grit"]),
    ],
    "node_classification": [
        ("--attention gat --walk-length 9", ["--walk-length", "with --attention gat"]),
        ("--attention gat --data-seed 9", ["--data-seed", "with --attention gat"]),
        ("--penalty 0 --penalise-biases", ["--penalise-biases", "with --penalty 0"]),
    ],
    "speech_recognition": [
        ("--hours 960", ["--hours", "with --dataset synthetic; it is for --dataset librispeech"]),
        ("--pieces 99", ["--pieces", "with --tokens character; it is for --tokens piece"]),
        ("--dataset librispeech --train-examples 9", ["--train-examples", "librispeech"]),
        ("--dataset librispeech --data-seed 9", ["--data-seed", "with --dataset librispeech"]),
        ("--batch-size 9 --batch-seconds 9", ["--batch-size", "with --batch-seconds 9"]),
        ("--language-model-weight 1", ["--language-model-weight", "without --language-model"]),
    ],
    "image_classification": [
        ("--attention softmax --where even", ["--where", "with --attention softmax"]),
        ("--dataset cifar10 --data-seed 9", ["--data-seed", "for --dataset digits or folder"]),
        ("--final-learning-rate 0.1", ["--final-learning-rate 0.1 is above --learning-rate 0.003"]),
    ],
}


@pytest.mark.parametrize("name", RECIPES)
def test_an_option_without_an_effect_is_one_line(name):
    recipe = recipe_of(name)
    for idle, words in IDLE[name]:
        with pytest.raises(UsageError) as error:
            recipe.parse(idle.split())
        for word in words:
            assert word in str(error.value)


@pytest.mark.parametrize("name", RECIPES)
def test_options_of_the_table_of_effects_exist(name):
    recipe = recipe_of(name)
    options = vars(recipe.parse(data_options(name)))
    for effect in recipe.effects:
        assert {*effect.options, *effect.beside} <= set(options)
    assert set(IDLE) == set(NAMES)


RUNS = [file for file in all_results() if "$" not in file.command]  # of a shell


@pytest.mark.parametrize("file", RUNS, ids=lambda file: file.name)
def test_the_command_of_every_result_is_accepted(file):
    name = file.path.parts[-3]
    text = file.command.replace("\\\n", " ")
    (arguments,) = re.findall(rf"python -m recipes\.{name} ?(.*)", text)[-1:]
    recipe_of(name).parse(shlex.split(re.sub(r"--backend \w+", "", arguments), comments=True))


# Another value of each option of attentions.
OTHERWISE = {
    **{"order": "6", "start": "high_pass", "constant": "0.2", "trained_coefficients": "power"},
    **{"alpha": "0.7", "beta": "0.7", "orthogonality_weight": "0.7", "vector_activation": "tanh"},
    **{"exponents": "1.7", "mask": "none", "feature_map": "elu", "landmarks": "5"},
    **{"expander_degree": "4", "num_virtual_nodes": "1", "coefficient_dropout": "0.5"},
    **{"coefficient_learning_rate_multiplier": "7", "learned_constant": "", "filter": "monomial"},
    "value_convolution": "",
}


@pytest.mark.parametrize("name", RECIPES)
def test_runs_of_an_attention_with_other_settings_share_no_folder(name, tmp_path):
    recipe = recipe_of(name)

    def check(output, attention, more=()):
        asked = [*data_options(name), "--attention", attention, *more]
        settings = {"filters": recipe.settings(recipe.parse(asked))}
        check_settings(output, settings, {}, overwrite=False)

    for attention in recipe.attentions:
        for option in set(ATTENTIONS[attention].options) - set(recipe.without):
            output = tmp_path / attention / option
            base = ["--filter", "jacobi" if option in JACOBI else "first_order"]
            base = base if "filter" in ATTENTIONS[attention].options else []
            flag = "--no-value-convolution" if option == "value_convolution" else flags([option])
            changed = [*base, flag, *OTHERWISE[option].split()]
            check(output, attention, changed)  # no runs yet
            check(output, attention, base)
            (output / "runs" / f"{attention}-seed0").mkdir(parents=True)
            check(output, attention, base)
            with pytest.raises(UsageError, match=rf"other settings: filters \(was .*'{attention}'"):
                check(output, attention, changed)


@pytest.mark.parametrize("part", ["model.keras", "preset/config.json"])
def test_overwriting_removes_nothing_that_is_read(part, tmp_path):
    output = tmp_path / "output"
    place = output / part
    options = Namespace(output=output, overwrite=True, preset=str(place), dataset="digits")
    with pytest.raises(UsageError, match=f"--preset {place} .*--overwrite would remove"):
        refuse_to_remove(options)
    refuse_to_remove(Namespace(**{**vars(options), "overwrite": False}))
    refuse_to_remove(Namespace(**{**vars(options), "preset": str(output / "own" / "preset")}))


@pytest.mark.parametrize(
    ("name", "wrong", "words"),
    [
        ("time_series", "--dataset JapaneseVowel", ["did you mean JapaneseVowels?"]),
        ("text_classification", "--preset electra --published", ["has settings for"]),
        ("code_classification", "--task clone", ["--data-dir", "data.jsonl"]),
        ("long_range_arena", "--task retrieval", ["--data-dir", "AAN"]),
        ("graph_classification", "--dataset NCI1", ["NCI1", "--data-dir"]),
        ("graph_classification", "--published", ["--published is for TU data", "--dataset NAME"]),
        ("graph_regression", "--dataset zinc", ["zinc", "--data-dir", "train.pickle"]),
        ("node_classification", "--dataset cora", ["cora", "--data-dir"]),
        ("image_classification", "--dataset folder", ["--data-dir", "sub-folder"]),
        ("speech_recognition", "--dataset digits", ["--dataset digits", "--data-dir"]),
        ("image_classification", "--model swin --attention softmax", ["multiple of 32"]),
        (
            "image_classification",
            "--model swin --attention gfsa --where last-half",
            ["--where", "even"],
        ),
    ],
)
def test_options_that_need_others_are_one_line(name, wrong, words, tmp_path, capsys):
    if "swin --attention softmax" in wrong:
        pytest.importorskip("keras_hub")
    arguments = [*wrong.split(), "--output", str(tmp_path / "output")]
    assert_one_error_line(recipe_of(name).main, arguments, words, capsys)


@pytest.mark.parametrize("name", [one for one in RECIPES if one.values[0] in HUB])
def test_a_preset_that_cannot_be_had_is_one_line(name, tmp_path, capsys):
    arguments_of(name, tmp_path)  # writes the data
    preset, output = tmp_path / "empty", tmp_path / "output"
    preset.mkdir()
    form = " as a causal language model" if name == "causal_lm" else ""
    words = [f"--preset {preset} cannot be loaded{form}"]
    arguments = [*data_options(name, tmp_path / "data"), "--preset", preset, "--output", output]
    assert_one_error_line(recipe_of(name).main, arguments, words, capsys)


@pytest.mark.parametrize("name", RECIPES)
def test_every_attention_is_one_of_the_registry(name):
    recipe = recipe_of(name)
    assert set(recipe.attentions) <= set(ATTENTIONS)
    options = recipe.parse([*data_options(name), "--attention", ",".join(recipe.attentions)])
    assert options.attention == list(recipe.attentions)
    assert set(recipe.settings(options)) == set(recipe.attentions)


def test_parts_of_what_recipes_share_import_from_those_above_them():
    common = ROOT / "recipes" / "common"
    order = re.findall(r"^\* `(\w+)`", (common / "__init__.py").read_text(), re.MULTILINE)
    for path in common.rglob("*.py"):
        part = path.relative_to(common).parts[0].removesuffix(".py")
        for line in path.read_text().splitlines():
            source = re.match(r"from recipes\.common\.(\w+)", line)
            if source and part != "__init__":
                assert order.index(source[1]) <= order.index(part), f"{path}: {line}"


def test_attentions_look_different():
    assert len({one.colour for one in ATTENTIONS.values()}) == len(ATTENTIONS)
    assert len({one.label for one in ATTENTIONS.values()}) == len(ATTENTIONS)
    assert [one.name for one in ATTENTIONS.values()] == list(ATTENTIONS)
    orders = [attention_of(f"gfsa-order{order}") for order in (1, 2, 3, 4, 5, 7, 9, 16)]
    assert len({one.colour for one in orders}) == len({one.label for one in orders}) == len(orders)
    brightness = [sum(bytes.fromhex(one.colour[1:])) for one in orders]
    assert brightness == sorted(brightness, reverse=True)


@pytest.mark.parametrize("name", RECIPES)
def test_a_new_filter_is_an_option_of_every_recipe(name, monkeypatch):
    class Halved(filters.Chebyshev):
        """Another filter."""

    monkeypatch.setitem(filters.FILTERS, "halved", Halved)
    recipe = recipe_of(name)
    asked = [*data_options(name), "--attention", "gfsa", "--filter", "halved", "--order", "2"]
    settings = recipe.settings(recipe.parse(asked))["gfsa"]
    assert settings["filter"] == {"name": "halved", "order": 2}
    assert type(layer_arguments(settings)["filter"]) is Halved
    with pytest.raises(UsageError, match="halved"):
        recipe.parse([*asked, "--filter", "unheard"])


@pytest.mark.parametrize("name", RECIPES)
def test_several_orders_are_compared_in_every_recipe(name):
    recipe = recipe_of(name)
    asked = [*data_options(name), "--attention", "softmax,gfsa", "--order", "2,5"]
    options = recipe.parse(asked)
    assert recipe.compared(options) == ["softmax", "gfsa-order2", "gfsa-order5"]
    trials = [recipe.trial(None, one, options, seed=1) for one in recipe.compared(options)]
    assert [trial.attention for trial in trials] == ["softmax", "gfsa", "gfsa"]
    assert [trial.settings["filter"]["order"] for trial in trials[1:]] == [2, 5]
    assert [trial.name for trial in trials] == recipe.compared(options)
    # the settings of a folder are those without an order, so that more of them can be added
    assert recipe.settings(options) == recipe.settings(recipe.parse(asked[:-2]))
    with pytest.raises(UsageError, match="order"):
        recipe.parse([*asked[:-1], "2,2"])


@pytest.mark.parametrize("name", RECIPES)
def test_help_names_every_filter_and_every_attention(name, capsys):
    recipe = recipe_of(name)
    with pytest.raises(SystemExit) as ended:
        recipe.parse(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    verb = recipe.description.partition(" ")[0]
    assert text.startswith(f"usage: python -m recipes.{name} [options]\n\n{verb} ")
    words = re.findall(r"[\w-]+", text)
    assert {*filters.FILTERS, *recipe.attentions, "--output"} <= set(words)


def test_a_filter_of_another_kind_has_its_own_order():
    recipe = recipe_of("time_series")
    options = recipe.parse(["--attention", "gfsa,agf", "--filter", "inverted"])
    for name in options.attention:
        settings = recipe.settings(options)[name]
        assert settings["filter"] == {"name": "inverted"}
        assert layer_arguments(settings)["filter"].order == 1


@pytest.mark.parametrize("name", RECIPES)
def test_folders_that_cannot_be_used_are_one_line(name, tmp_path, capsys):
    main = recipe_of(name).main
    arguments = arguments_of(name, tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "settings.json").write_text('{"epochs": 77}')
    (tmp_path / "busy").mkdir()
    places = {
        "file": ["cannot write to --output", "it is a file"],
        "file/inside": ["cannot write to --output"],
        "other": ["other settings", "epochs (was 77, now 1)", "--overwrite"],
        "busy": ["another run is writing to --output"],
        "busy --overwrite": ["another run is writing to --output"],
    }
    if name in HUB:  # their data take seconds to load; the outline is the same
        del places["file/inside"], places["other"]
    with locked(tmp_path / "busy" / LOCK):
        for place, words in places.items():
            elsewhere = [*arguments, "--output", *f"{tmp_path}/{place}".split()]
            assert_one_error_line(main, elsewhere, words, capsys)
    assert sorted(path.name for path in (tmp_path / "busy").iterdir()) == [LOCK]


@pytest.mark.parametrize("name", RECIPES)
def test_a_folder_without_the_data_is_one_line_that_names_it(name, tmp_path, capsys):
    recipe = recipe_of(name)
    assert (name in FROM_FILES) == bool(recipe.data_files)
    for folder in [tmp_path / "missing", tmp_path] if recipe.data_files else []:
        words = [str(folder)]
        words += [] if folder.exists() else ["does not exist", recipe.data_files]
        arguments = [*data_options(name, folder), "--output", tmp_path / "out"]
        assert_one_error_line(recipe.main, arguments, words, capsys)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ModuleNotFoundError(name="some_package"), "`pip install some_package`, or give"),
        (OSError("no route\nto host"), "no route.*--data-dir"),
    ],
)
def test_errors_of_tfds_say_what_to_do(error, words, monkeypatch):
    def load(*_, **__):
        raise error

    module = SimpleNamespace(load=load, as_numpy=list)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", module)
    with pytest.raises(UsageError, match=f"(?s)glue/cola.*{words}"):
        load_tfds("glue/cola", "train")
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    extra = re.escape(INSTALL_EXTRA.format("recipes,tensorflow"))
    with pytest.raises(UsageError, match=f"glue/cola.*{extra}"):
        load_tfds("glue/cola", "train")


def load_digits():
    recipe = recipe_of("image_classification")
    return recipe.load(recipe.parse(["--dataset", "digits"]))


def read_checkpoint(name):
    return import_module("recipes.code_classification.encoder_decoders")._read(Path(name))


@pytest.mark.all_cases
@pytest.mark.parametrize(
    ("package", "needs_it"),
    [
        ("aeon", lambda: time_series_data.read("JapaneseVowels")),
        ("safetensors", lambda: read_checkpoint("model.safetensors")),
        ("torch", lambda: read_checkpoint("pytorch_model.bin")),
        ("sklearn", load_digits),
        ("tensorflow", images.tensorflow.__wrapped__),
        ("tensorflow_datasets", lambda: load_tfds("glue/cola", "train")),
    ],
)
def test_a_package_that_cannot_be_imported_says_why(package, needs_it, monkeypatch):
    pytest.importorskip("keras_hub")

    def refuse(name, *arguments, **more):
        if name.split(".")[0] == package:
            raise ImportError("it needs NumPy 2.3 or less")
        return imported(name, *arguments, **more)

    imported = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(UsageError, match=r"pip install.*\(it needs NumPy 2\.3 or less\)"):
        needs_it()


WITHOUT_ONE_CLASS = ("causal_lm", "speech_recognition", *MADE)


@pytest.mark.parametrize("name", [one for one in RECIPES if one.values[0] not in WITHOUT_ONE_CLASS])
def test_training_data_of_one_class_is_refused(name, tmp_path, capsys):
    arguments = arguments_of(name, tmp_path, one_class=True)
    words = ["training examples are of the class", "at least two classes"]
    assert_one_error_line(recipe_of(name).main, arguments, words, capsys)
    assert not (tmp_path / "output").exists()
