"""Options and settings of attentions by default and as published, and what deviates from those."""

import pytest

from tests.recipes.models import recipe_of

RATE = "coefficient_learning_rate_multiplier"


def first_order(rate=1.0, **settings):
    return {"filter": {"name": "first_order", "order": 3, **settings}, RATE: rate}


def agf(order, weight, alpha, beta, *, learned=False, rate=1.0, layers=2):
    """AGF's settings from K, gamma, a, b; gamma is shared out over the layers."""
    return {
        "filter": {"name": "jacobi", "order": order, "alpha": alpha, "beta": beta},
        "learned_constant": learned,
        "orthogonality_weight": weight / layers,
        RATE: rate,
    }


# METHODS, AGF on UEA: K, gamma, a, b
UEA = """EthanolConcentration 6, .1, 1.5, -1.5; FaceDetection 9, .1, 2, .5;
Handwriting 3, .01, 1, .2; Heartbeat 6, .01, -.5, -.5; JapaneseVowels 4, .01, 0, 0;
PEMS-SF 5, .1, 1.5, 2; SelfRegulationSCP1 9, .1, 1.5, 2; SelfRegulationSCP2 7, .1, 2, 1.5;
SpokenArabicDigits 4, .1, 1, 0; UWaveGestureLibrary 10, .1, 2, 1.5"""
LEARNED = ("Handwriting", "Heartbeat", "JapaneseVowels")
OF_UEA = {"epochs": 100, "patience": 100, "batch_size": 16, "learning_rate": 1e-3, "layers": 2}
OF_UEA |= {"d_model": 512, "heads": 8, "attention": ["softmax", "linear", "gfsa", "agf"]}
# METHODS, section 6: what AGF's released code sets on UEA
RELEASED = {"dropout": 0.1, "feed_forward": 2048, "scaled_values": True, "readout": "flatten"}
OTHERWISE_RELEASED = {
    "PEMS-SF": ((5, 0.1, 1.5, 2), {"epochs": 400, "patience": 400}),
    "SelfRegulationSCP1": ((9, 0.1, 1.5, 1), {}),
    "SpokenArabicDigits": ((4, 0.5, 1, 0), {"rectified": False}),
}
# AGF on the arena, as METHODS has it: K, gamma, a, b, learning rate
ARENA = """text 5, .001, 1, 1, 5e-5; image 7, .01, 2, -1, 1e-3; retrieval 5, .1, 1, 1, 5e-4;
listops 5, .1, 1.5, 1, 1e-3; pathfinder 3, 1e-4, 1.5, -1, 1e-4"""
# Steps and batches in the code that its authors released.
ARENA_CODE = {"text": (20_000, 32), "image": (35_000, 256), "retrieval": (30_000, 32)}
ARENA_CODE |= {"listops": (5000, 32), "pathfinder": (62_400, 256)}
# arXiv 2312.04234 on GLUE
OF_GLUE = {"epochs": 5, "batch_size": 32, "learning_rate": 2e-5}
OF_GLUE |= {"weight_decay": 0.0, "coefficient_learning_rate": 2e-5}
# arXiv 2012.12877, Table 9
OF_DEIT = {"epochs": 300, "batch_size": 1024, "learning_rate": 1e-3, "weight_decay": 0.05}
OF_DEIT |= {"warm_up_epochs": 5, "label_smoothing": 0.1, "dropout": 0.0, "drop_path": 0.1}
OF_DEIT |= {"mix_up": 0.8, "cut_mix": 1.0, "random_erasing": 0.25, "repeats": 3}
OF_DEIT |= {"image_size": 224, "patch": 16, "layers": 12, "d_model": 384, "heads": 6}
# arXiv 2106.05234, Graphormer-slim
OF_ZINC = {"layers": 12, "heads": 8, "key_dim": 10, "feed_forward": 80}
OF_ZINC |= {"attention": ["softmax", "gfsa"]}


def rows(text):
    """The names and the numbers of a table."""
    for line in text.replace("\n", " ").split(";"):
        name, _, numbers = line.strip().partition(" ")
        yield name, [float(number) for number in numbers.split(",")]


def time_series_cases():
    for name, numbers in rows(UEA):
        settings = {"agf": agf(*numbers, learned=name in LEARNED)}
        yield f"--published --dataset {name}", OF_UEA, settings, []
        if name not in OTHERWISE_RELEASED:
            yield f"--released --dataset {name}", OF_UEA | RELEASED, settings, []
    for name, (numbers, others) in OTHERWISE_RELEASED.items():
        settings = {"agf": agf(*numbers)}
        yield f"--released --dataset {name}", OF_UEA | RELEASED | others, settings, []
    changed = "--published --epochs 3 --order 2 --attention agf --batch-size 16"
    options = {"epochs": 3, "d_model": 512, "attention": ["agf"]}
    yield changed, options, {}, ["epochs 3 (published: 100)", "order 2"]
    yield "--epochs 3", {"epochs": 3}, {}, []
    by_default = {"gfsa": first_order(50.0), "agf": agf(5, 0.1, 1.5, 2.0, rate=50.0)}
    yield "--dataset PEMS-SF", {}, by_default
    asked = "--order 2 --filter legendre --orthogonality-weight 0.4 --layers 4"
    asked += f" --start high_pass --{RATE.replace('_', '-')} 3"
    both = {"filter": {"name": "legendre", "order": 2, "start": "high_pass"}, RATE: 3.0}
    yield asked, {}, {"gfsa": both, "agf": {**agf(2, 0.4, 0, 0, layers=4), **both}}


def long_range_arena_cases():
    for name, (*numbers, rate) in rows(ARENA):
        data = " --data-dir x" if name == "retrieval" else ""
        options = {"layers": 2, "d_model": 64, "heads": 2, "learning_rate": rate}
        steps, options["batch_size"] = ARENA_CODE[name]
        yield f"--task {name} --preset paper{data}", options, {"agf": agf(*numbers)}, []
        released = {**options, "learning_rate": 1e-4, "epochs": 20, "steps_per_epoch": steps / 20}
        if name == "text":
            released["max_length"] = 1024
        yield f"--task {name} --preset released{data}", released, {"agf": agf(*numbers)}, []
    changed = ["d_model 128 (published: 64)", "epochs 2 (published: 20)", "order 4"]
    yield "--preset paper --d-model 128 --epochs 2 --order 4", {}, {}, changed


def text_classification_cases():
    for preset, constant in (("bert_base_en", -0.01), ("roberta_base_en", -0.05)):
        trained = {"initial_coefficients": {"identity": constant}}
        trained["trainable_coefficients"] = ["power"]
        filter = {"filter": first_order(**trained)["filter"]}
        yield f"--preset {preset} --published", OF_GLUE, {"gfsa": filter}, []
    yield "--preset albert_base_en_uncased --published", {"constant": 0.05}
    yield "--task rte --preset bert_base_en --published", {"constant": 0.0}
    yield "--preset minilm --published --epochs 2", {}, {}, ["epochs 2 (published: 5)"]
    yield "", {}, {"gfsa": {"filter": first_order()["filter"]}}


def code_classification_cases():
    filter = {"gfsa": {"filter": first_order(order=2)["filter"]}}
    options = {"max_length": 512, "learning_rate": 2e-5, "warm_up": 1000, "epochs": 10}
    options |= {"batch_size": 16, "patience": 2}
    yield "--task defect --data-dir x --published --order 2", options, filter, []
    options = {"max_length": 400, "learning_rate": 5e-5, "epochs": 1, "batch_size": 16}
    changed = ["max_length 128 (published: 400)"]
    yield "--task clone --data-dir x --published --max-length 128", {}, {}, changed
    yield "--task clone --data-dir x --published --preset roberta_base_en", options
    yield "--task defect --data-dir x --preset roberta_base_en", {"learning_rate": 2e-5}
    yield "", {"learning_rate": 5e-4, "layers": 2, "validation_fraction": 0.1}


def image_classification_cases():
    settings = {"gfsa": first_order(), "agf": agf(3, 1e-4, -0.5, 0, layers=12)}
    yield "--dataset imagenet2012 --model deit --published", OF_DEIT, settings, []
    first = "--dataset imagenet2012 --model deit --published --attention softmax,agf"
    yield first, {"where": "first:6"}, {"agf": agf(3, 1e-4, -0.5, 0, layers=12)}, []
    first = "--dataset imagenet100 --model deit --published --attention agf"
    yield first, {"where": "first:1"}, {"agf": agf(4, 0, -0.5, 0, layers=12)}, []
    yield "--model deit --size deit-small-24 --published", {"dropout": 0.2, "where": "all"}
    yield "--model cait --published", {"epochs": 400, "repeats": 3, "clip": None}
    swin = {"epochs": 300, "warm_up_epochs": 20, "repeats": 1, "clip": 5.0, "drop_path": 0.3}
    yield "--model swin --attention gfsa --published", swin
    swin = {"warm_up_epochs": 5, "repeats": 3, "clip": None}
    yield "--model swin --attention gfsa --released", swin
    released = "--model cait --released --seeds 1 --epochs 400"
    yield released, {}, {"gfsa": first_order(order=4)}, ["epochs 400 (published: 500)"]
    swin = "--dataset imagenet2012 --model swin --attention gfsa --released"
    yield swin, {"drop_path": 0.3}
    yield "", {"size": None, "layers": 4, "patch": 2}
    start = {"identity": 0.5, "linear": 1.0, "power": -0.5}
    high_pass = first_order(50.0, order=5, initial_coefficients=start)  # whatever `--filter` says
    plain = {"filter": {"name": "chebyshev", "order": 5}, RATE: 50.0}
    asked = "--attention gfsa,gfsa_high_pass --filter chebyshev --order 5"
    yield asked, {}, {"gfsa": plain, "gfsa_high_pass": high_pass}
    yield "--model deit", {"d_model": 384}
    yield "--size deit-base", {"d_model": 768}


def graph_regression_cases():
    published = "--dataset zinc --data-dir x --published --epochs 3"
    yield published, OF_ZINC, {"gfsa": first_order(order=2)}, ["epochs 3 (published: 10000)"]
    base = {**OF_ZINC, "heads": 32, "key_dim": 24, "feed_forward": 768, "validation_fraction": 0}
    published = "--dataset pcqm4m --data-dir x --published"
    yield published, base, {"gfsa": first_order(order=2)}, []


def motif_detection_cases():
    options = {"train_examples": 1536, "evaluation_examples": 512, "epochs": 500, "patience": 80}
    options |= {"batch_size": 128, "learning_rate": 1e-3, "heads": 2, "last_heads": 2}
    options |= {"key_dim": 9, "walks": 50, "walk_length": 4, "linear_head": True}
    units = {"gcn": {"units": 32}, "sgc": {"units": 32}}
    yield "--task grid --published", options, units, []
    other = {**units, "sgc": {"units": 40}}
    yield "--task grid --published --sgc-units 40", {}, other, ["sgc_units 40 (published: 32)"]
    more = "--walks 9 --base-nodes 1000"
    found = ["base_nodes 1000 (published: 100)", "walks 9 (published: 50)"]
    yield f"--task grid --published {more}", {"base_nodes": 1000}, {}, found
    released = {**options, "patience": 500, "choose_by": "both"}
    form = {**units, "graph_kernel": {"separate_values": True}}
    yield "--task grid --released", released, form, []
    yield "--task grid --released --patience 80", {}, {}, ["patience 80 (published: 500)"]
    yield "--task grid", {"linear_head": False, "penalty": 0.0, "gcn_units": None}, {"gcn": {}}
    cycles = {"heads": 8, "last_heads": 1, "key_dim": 4, "walk_length": 6, "penalty": 1e-5}
    yield (
        "--task induced_cycle --published",
        {**options, **cycles, "learning_rate": 5e-3},
        units,
        [],
    )


def graph_classification_cases():
    options = {"seeds": [*range(30)], "epochs": 1000, "patience": 500, "batch_size": 32}
    options |= {"learning_rate": 1e-3, "heads": 8, "key_dim": 8, "last_heads": 1}
    options |= {"feed_forward": 128, "pooling": "sum", "relu_head": True, "normalise": False}
    molecules = ["gcn", "gat", "gin", "molecular_fingerprint", "graph_kernel"]
    sets = ["gcn", "gat", "gin", "deep_multisets", "graph_kernel"]
    units = {"deep_multisets": {"units": 128}, "gin": {"normalise": True}, "gcn": {}}
    for name, attentions in {"NCI1": molecules, "ENZYMES": sets, "IMDB-BINARY": sets}.items():
        command = f"--dataset {name} --data-dir x --published"
        yield command, {**options, "attention": attentions}, units, []
    changed = "--dataset MUTAG --data-dir x --published --seeds 0 --walks 9 --no-relu-head"
    found = ["relu_head False (published: True)", "walks 9 (published: 50)"]
    yield changed, {"seeds": [0], "attention": molecules}, {}, found
    released = "--dataset ENZYMES --data-dir x --published --released-form --standardise"
    found = ["standardise True (published: False)", "released_form True (published: False)"]
    yield released, {}, {"graph_kernel": {"value_dropout": 0.0}}, found
    yield "", {"relu_head": False, "seeds": [0]}, {"deep_multisets": {"units": 32}, "gin": {}}


def node_classification_cases():
    published = "--data-dir x --published --dataset"
    options = {"attention": ["gat", "graph_kernel"], "patience": 100, "learning_rate": 5e-3}
    options |= {"layers": 2, "heads": 8, "key_dim": 8, "dropout": 0.6, "penalty": 5e-4}
    options |= {"walks": 100, "walk_length": 4, "embedding": False, "head": False}
    dropped = {"coefficient_dropout": 0.6}
    settings = {"gat": dropped, "gcn": {"units": 16}, "softmax": {}}
    settings["graph_kernel"] = {**dropped, "value_dropout": 0.6, "dense": True}
    yield f"{published} cora", options, settings, []
    changed = ["penalty 0.002 (published: 0.0005)", "coefficient_dropout 0.0 (published: 0.6)"]
    asked = f"{published} citeseer --penalty 2e-3 --coefficient-dropout 0"
    yield asked, {}, {"dynamic_graph_kernel": {"coefficient_dropout": 0.0}}, changed
    yield "", {"head": True, "choose_by": "accuracy", "penalty": 2e-3}, {"gat": {}, "gcn": {}}


def causal_lm_cases():
    asked = "--data-dir x --dataset wikitext-103 --published"
    options = {"layers": 16, "d_model": 128, "heads": 8, "context": 256, "stride": 1}
    options |= {"learning_rate": 2.5e-4, "warm_up": 2000, "tokens": "word"}
    exponents = {"p_laplacian": {"p": [1.5] * 4 + [2.5] * 4}}
    yield f"{asked} p_laplacian", options, exponents, []
    yield f"{asked} p_laplacian --stride 9", {"stride": 9}, {}, ["stride 9 (published: 1)"]
    options = {"epochs": 4, "batch_size": 4, "learning_rate": 5e-5, "context": 1024}
    yield f"{asked} gfsa", options | {"order": 3, "attention": ["softmax", "gfsa"]}


MAKERS = (
    causal_lm_cases,
    *(motif_detection_cases, graph_classification_cases, node_classification_cases),
    *(time_series_cases, long_range_arena_cases, text_classification_cases),
    *(code_classification_cases, image_classification_cases, graph_regression_cases),
)
# a recipe, its command, some options, the settings of some attentions, deviations if they are asked
CASES = [
    (make.__name__.removesuffix("_cases"), *case, *({}, {}, None)[len(case) - 1 :])
    for make in MAKERS
    for case in make()
]


@pytest.mark.all_cases  # they take no time
@pytest.mark.parametrize(("name", "command", "expected", "attentions", "deviations"), CASES)
def test_settings_are_those_of_the_papers(name, command, expected, attentions, deviations):
    if name in ("causal_lm", "text_classification", "code_classification"):
        pytest.importorskip("keras_hub")
    recipe = recipe_of(name)
    options = recipe.parse(command.split())
    assert expected.items() <= vars(options).items()
    settings = recipe.settings(options)
    assert {one: settings[one] for one in attentions} == attentions
    assert deviations is None or recipe.deviations(options) == deviations


def test_all_published_data_sets_are_here():
    from recipes.long_range_arena.__main__ import TASKS
    from recipes.time_series.__main__ import PUBLISHED_AGF

    assert [name for name, _ in rows(UEA)] == list(PUBLISHED_AGF)
    assert {name for name, _ in rows(ARENA)} == set(TASKS)
