"""Each served public layer equals Keras to 1e-5, for three batch sizes and three lengths."""

import inspect

import keras
import pytest

from keras_graphattn import layers, masks
from keras_graphattn.export import export_saved_model
from tests.export.layer_cases import CASES, CORE, LENGTH, batch_for, model_of, shapes_of_inputs
from tests.export.served import assert_served
from tests.numerics import BACKEND

BATCHES = (1, 3, 8)
LENGTHS = (1, 13, 32)


def check(model, path, batches, folder, signatures=None):
    expected = [predicted(model, batch) for batch in batches]
    assert_served(path, batches, expected, folder, signatures)


def predicted(model, batch):
    """Returns name to array, without `predict` if its graph might have open lengths."""
    outputs = model.predict_on_batch(batch) if BACKEND == "jax" else model(batch, training=False)
    return {name: keras.ops.convert_to_numpy(tensor) for name, tensor in outputs.items()}


def names_served(how, names=CASES):
    return [name for name in names if CASES[name].served == how]


def check_lengths(how, names, batches, lengths, folder):
    """Serves all lengths by one graph, or "fixed", each by a signature of its own."""
    model, signature = model_of(names, None), "serving_default"
    if how == "fixed":
        signature = {f"length_{n}": shapes_of(model, n) for n in lengths}
    path = export_saved_model(model, folder / "served", signature=signature)
    arrays = [batch_for(model, batch, n) for batch in batches for n in lengths]
    check(model, path, arrays, folder, how == "fixed" and list(signature) * len(batches))


def shapes_of(model, length):
    return {
        name: shape for name, (shape, _) in shapes_of_inputs(length).items() if name in model.input
    }


def test_every_layer_and_mask_has_a_case():
    kinds = {case.kind.__name__ for case in CASES.values()}
    assert kinds == set(layers.__all__)
    under = set()
    for case in CASES.values():
        mask = case.options().get("mask")
        under |= {type(one).__name__ for one in [mask, *getattr(mask, "masks", [])]}
    public = {name for name in masks.__all__ if inspect.isclass(getattr(masks, name))}
    assert public - {"Mask"} <= under  # `Mask` is the base class


@pytest.mark.slow_on("torch")
@pytest.mark.parametrize("how", [pytest.param("open", marks=pytest.mark.slow_on("jax")), "fixed"])
def test_one_case_of_each_layer_and_way(how, tmp_path):
    check_lengths(how, names_served(how, CORE), [3], [13], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("by_edges", [True, False])  # JAX would take edges to be as many as tokens
def test_open_lengths(by_edges, tmp_path):
    names = [n for n in names_served("open") if ("edges" in CASES[n].inputs) == by_edges]
    check_lengths("open", names, BATCHES, LENGTHS, tmp_path)


@pytest.mark.slow
def test_lengths_fixed_by_signatures(tmp_path):
    check_lengths("fixed", names_served("fixed"), BATCHES, LENGTHS, tmp_path)


@pytest.mark.slow
def test_masks_of_one_length(tmp_path):
    model = model_of(names_served("bound"), LENGTH)
    path = export_saved_model(model, tmp_path / "served")
    batches = [batch_for(model, batch, LENGTH) for batch in BATCHES]
    check(model, path, batches, tmp_path)


@pytest.mark.skipif(BACKEND != "jax", reason="other backends have open lengths")
def test_open_lengths_that_jax_cannot_export_are_told(tmp_path):
    # JAX cannot compare the length of the tokens with the two of the distances
    with pytest.raises(ValueError, match=r"open lengths(.|\n)*Build it with fixed lengths"):
        export_saved_model(model_of(["kernel_distances"], None), tmp_path / "served")


@pytest.mark.slow_on("torch")
def test_open_lengths_by_fft_are_refused(tmp_path):
    with pytest.raises(Exception, match="fixed length"):
        export_saved_model(model_of(["kernel_toeplitz_fft"], None), tmp_path / "served")
