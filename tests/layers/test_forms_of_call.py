"""A layer gives the same outputs in every form of call, and padding has no influence on tokens.

The masks come from token ids, as Keras finds them, or from the caller.
"""

import keras
import numpy as np
import pytest
from keras import ops

from keras_graphattn import layers
from keras_graphattn.layers.token_layer import TokenLayer
from tests.layers.unseen_cases import BATCH, CASES, CHANNELS, HEADS, LENGTH, SIZE, scene
from tests.numerics import randomise, to_numpy

IDS = 1 + np.random.default_rng(0).integers(20, size=(BATCH, LENGTH))
IDS[0, 7:], IDS[1, 6:], IDS[1, 2] = 0, 0, 0  # padding
REAL = IDS > 0
SHORTER = 8


def embedding():
    """A layer from token ids to tokens with a mask, whose padding is far from all tokens."""
    made = keras.layers.Embedding(21, CHANNELS, mask_zero=True)
    made.build()
    table = np.random.default_rng(1).standard_normal((21, CHANNELS))
    table[0] = 100.0
    made.set_weights([table])
    return made


class Subclassed(keras.Model):
    def __init__(self, embed, layer, call):
        super().__init__()
        self.embed, self.layer, self.given = embed, layer, call

    def call(self, ids):
        return self.layer(self.embed(ids), **self.given)


def forms_of(layer, call):
    """Every form of call by its name: a function from token ids to outputs."""
    embed = embedding()

    def functional(ids):
        inputs = keras.Input((None,), dtype="int32")
        return keras.Model(inputs, layer(embed(inputs), **call))(ids)

    forms = {
        "one tensor": lambda ids: layer(embed(ids), **call),
        "functional": functional,
        "subclassed": lambda ids: Subclassed(embed, layer, call)(ids),
        "mask": lambda ids: layer(plain(embed(ids)), mask=ids > 0, **call),
        "mask over the one found": lambda ids: layer(
            with_mask(embed(ids), ids < 0), mask=ids > 0, **call
        ),
    }
    if not call:
        forms["Sequential"] = lambda ids: keras.Sequential([embed, layer])(ids)
        forms["TimeDistributed"] = lambda ids: keras.layers.TimeDistributed(layer)(
            embed(np.stack([ids, ids], axis=1))
        )[:, 1]
    if isinstance(layer, TokenLayer):
        forms["by name"] = lambda ids: layer(inputs=embed(ids))
        return forms
    forms |= {
        "by name": lambda ids: layer(query=embed(ids), **call),
        "two tensors": lambda ids: layer(*[embed(ids)] * 2, **call),
        "three tensors": lambda ids: layer(*[embed(ids)] * 3, **call),
        "key alone": lambda ids: layer(embed(ids), key=embed(ids), **call),
        "two by name": lambda ids: layer(query=embed(ids), value=embed(ids), **call),
        "value's mask found": lambda ids: layer(
            plain(embed(ids)), embed(ids), query_mask=ids > 0, **call
        ),
        **{
            f"{name} beside the one found": lambda ids, name=name: layer(
                embed(ids), **{name: ids > 0}, **call
            )
            for name in ("query_mask", "value_mask", "key_mask")
        },
        "query_mask": lambda ids: layer(plain(embed(ids)), query_mask=ids > 0, **call),
        "query_mask and value_mask": lambda ids: layer(
            *[plain(embed(ids))] * 2, query_mask=ids > 0, value_mask=ids > 0, **call
        ),
        "all masks": lambda ids: layer(
            *[plain(embed(ids))] * 3,
            **dict.fromkeys(("query_mask", "value_mask", "key_mask"), ids > 0),
            **call,
        ),
    }
    return forms


def plain(x):
    """The tensor without its mask."""
    return ops.copy(x)


def with_mask(x, mask):
    x = plain(x)
    keras.src.backend.set_keras_mask(x, ops.convert_to_tensor(mask))
    return x


def built(name):
    layer = CASES[name].make()
    layer.build((BATCH, LENGTH, CHANNELS))
    randomise(layer)
    return layer, scene(name, "example", layer).call


@pytest.mark.parametrize("name", [n for n in CASES if not n.startswith(("pooling", "ContraNorm"))])
def test_a_mask_of_pairs_broadcasts_or_is_refused(name):
    layer, call = built(name)
    x = np.random.default_rng(0).standard_normal((BATCH, LENGTH, CHANNELS)).astype("float32")
    columns = np.arange(LENGTH) % 3 > 0

    def outcome(mask):
        try:
            return to_numpy(layer(x, **{**call, "attention_mask": mask}))
        except ValueError as error:
            return type(error)

    for mask in (columns[:, None], columns[None], np.tile(columns[:, None], (BATCH, 1, 1, 1))):
        full = np.broadcast_to(mask, (*mask.shape[:-2], LENGTH, LENGTH))
        np.testing.assert_equal(outcome(mask), outcome(full))


@pytest.mark.parametrize("name", [n for n in CASES if not n.startswith(("pooling", "ContraNorm"))])
def test_a_mask_of_keys_broadcasts_over_the_batch(name):
    layer, call = built(name)
    if hasattr(layer, "orthogonality_weight"):
        layer.orthogonality_weight = 0.1  # the loss reads the mask too
    x = np.random.default_rng(0).standard_normal((BATCH, LENGTH, CHANNELS)).astype("float32")
    keys = (np.arange(LENGTH) % 3 > 0)[None, None]  # (1, 1, S)
    expected, *found = (
        to_numpy(layer(x, **{**call, "attention_mask": mask}))
        for mask in (np.tile(keys, (BATCH, 1, 1)), keys, keys[None])
    )
    np.testing.assert_allclose(found, [expected] * 2, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_every_form_of_call_gives_the_same_outputs(name):
    layer, call = built(name)
    forms = forms_of(layer, call)
    expected = to_numpy(forms["mask"](IDS))
    for form, run in forms.items():
        found = to_numpy(run(IDS))
        np.testing.assert_allclose(
            found, expected, atol=1e-5 * np.abs(expected).max(), err_msg=form
        )


@pytest.mark.parametrize("name", CASES)
def test_padding_has_no_influence_from_token_ids_on(name):
    layer, call = built(name)
    embed = embedding()
    before = to_numpy(layer(embed(IDS), **call))
    table = to_numpy(embed.embeddings)
    table[0] = -3.0
    embed.set_weights([table])
    after = to_numpy(layer(embed(IDS), **call))
    lengths = [after]
    has_a_size = CASES[name].components or "BlockToeplitz" in name  # a topology, a grid
    if not call and not has_a_size:
        lengths.append(to_numpy(layer(embed(IDS[:, :SHORTER]))))
    for outputs in lengths:
        expected, real = before, np.ones(len(outputs), bool)
        if outputs.ndim == 3:
            expected, real = before[:, : outputs.shape[1]], REAL[:, : outputs.shape[1]]
        np.testing.assert_allclose(outputs[real], expected[real], atol=1e-5 * np.abs(before).max())


class Narrow(layers.GraphFilterAttention):
    """A layer of a user, whose call has no masks."""

    def call(self, query, value=None, key=None):
        return super().call(query, value, key)


@pytest.mark.parametrize("kind", ["a layer", "a subclass of a user", "rematerialised"])
def test_the_mask_reaches_the_pooling_in_training_and_after_loading(kind, tmp_path):
    if kind == "rematerialised" and keras.backend.backend() == "tensorflow":
        pytest.skip("Keras rematerialises no layer with masks on TensorFlow")
    make = Narrow if kind == "a subclass of a user" else layers.GraphFilterAttention
    with keras.RematScope("full" if kind == "rematerialised" else None):
        attention = make(HEADS, SIZE)
    embed, pooling, head = embedding(), layers.GraphMeanPooling(), keras.layers.Dense(1)
    embed.trainable = False
    model = keras.Sequential([embed, attention, pooling, head])
    model.compile("sgd", "mse")
    model.fit(IDS, np.ones(BATCH), epochs=1, verbose=0)
    expected = model.predict(IDS, verbose=0)
    shorter = [model.predict(ids[ids > 0][None], verbose=0)[0] for ids in IDS]
    np.testing.assert_allclose(expected, shorter, rtol=1e-4)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras", {"Narrow": Narrow})
    np.testing.assert_allclose(loaded.predict(IDS, verbose=0), expected, rtol=1e-4)


def test_masks_that_keras_finds_are_no_part_of_a_functional_model(tmp_path):
    """Else files of models with several layers would hold operations of one name."""
    inputs = keras.Input((None,), dtype="int32")
    first, second = (layers.GraphFilterAttention(HEADS, SIZE) for _ in range(2))
    model = keras.Model(inputs, second(query=first(embedding()(inputs))))
    for layer in (first, second):
        (node,) = model.get_layer(layer.name)._inbound_nodes
        assert not [name for name in node.arguments.kwargs if "mask" in name]
    model.save(tmp_path / "model.keras")
    keras.utils.clear_session()  # names begin anew, as in another process
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(to_numpy(loaded(IDS)), to_numpy(model(IDS)), atol=1e-6)


@pytest.mark.parametrize(
    "name", ["graph filter", "AGF, causal", "kernel, causal, squared ReLU, filter"]
)
def test_decoding_finds_the_mask_of_the_tokens(name):
    layer, _ = built(name)
    x = embedding()(IDS)
    expected = to_numpy(layer(x, **{} if "AGF" in name else {"use_causal_mask": True}))
    if hasattr(layer, "get_initial_cache"):
        found, _ = layer.decode(x, layer.get_initial_cache(BATCH, LENGTH), 0)
    else:
        found, _ = layer.decode(x, layer.get_initial_state(BATCH))
    np.testing.assert_allclose(to_numpy(found)[REAL], expected[REAL], atol=1e-4)
