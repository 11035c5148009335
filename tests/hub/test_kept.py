"""What a conversion and its way back keep: what trains, the optimizer, masks, axes."""

import keras
import keras_hub
import numpy as np
import pytest

import keras_graphattn
from keras_graphattn.layers import GraphFilterAttention
from tests.hub.families import family
from tests.hub.models import attentions_of
from tests.numerics import to_numpy

X = np.random.default_rng(0).standard_normal((2, 6, 8)).astype("float32")


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
@pytest.mark.parametrize("frozen_first", [True, False])
def test_what_trains_is_as_the_user_has_set_it_last(name, frozen_first):
    model = family(name).make()
    weights = len(model.trainable_variables)
    model.trainable = not frozen_first
    keras_graphattn.convert(model)
    model.trainable = frozen_first
    keras_graphattn.revert(model)
    assert len(model.trainable_variables) == (weights if frozen_first else 0)
    keras_graphattn.convert(model)
    assert len(model.trainable_variables) == (len(model.weights) if frozen_first else 0)


def test_rematerialisation_stays():
    with keras.RematScope(mode="full"):
        encoder = keras_hub.layers.TransformerEncoder(16, 2)
        encoder(X)
    mode = encoder._self_attention_layer._remat_mode
    keras_graphattn.convert(encoder)
    assert mode is not None
    assert encoder._self_attention_layer._remat_mode is mode


@pytest.mark.parametrize("scaled", [False, True])
def test_weights_that_do_not_decay_go_on_so(scaled):
    backbone = family("bert").make()
    task = keras_hub.models.BertTextClassifier(backbone, 2, preprocessor=None)
    optimizer = keras.optimizers.AdamW(1e-3, weight_decay=0.1)
    kernel = next(v for v in task.trainable_variables if v.name == "kernel")
    optimizer.exclude_from_weight_decay(var_list=[kernel], var_names=["bias"])
    optimizer = keras.optimizers.LossScaleOptimizer(optimizer) if scaled else optimizer
    task.compile(optimizer=optimizer, loss="mse", auto_scale_loss=False)
    for change in (lambda model: model, keras_graphattn.convert, keras_graphattn.revert):
        task.optimizer.build(task.trainable_variables)
        change(task)
        inner = getattr(task.optimizer, "inner_optimizer", task.optimizer)
        decays = {v.path: inner._use_weight_decay(v) for v in task.trainable_variables}
        assert not decays[kernel.path]
        wrong = [p for p in decays if p != kernel.path and decays[p] == p.endswith("bias")]
        assert not wrong


@pytest.mark.parametrize("attention", ["graph_filter", "p_laplacian", "agf", "masked_kernel"])
@pytest.mark.parametrize("argument", ["decoder_attention_mask", "use_causal_mask"])
def test_a_decoder_follows_its_arguments_or_refuses_them(attention, argument):
    decoder = keras_hub.layers.TransformerDecoder(16, num_heads=2)
    decoder(X)
    keras_graphattn.convert(decoder, attention)
    segments = np.arange(6)[None] // 3 * np.ones((2, 1))
    given = {"decoder_attention_mask": segments[:, :, None] == segments[:, None]}
    given = given if argument == "decoder_attention_mask" else {"use_causal_mask": False}
    is_refused = (attention, argument) in {
        *(("agf", "decoder_attention_mask"), ("agf", "use_causal_mask")),
        ("masked_kernel", "decoder_attention_mask"),
    }
    if is_refused:
        with pytest.raises(
            ValueError, match=rf"causality and padding only\. Received: {argument}="
        ):
            decoder(X, **given)
        return
    found = to_numpy(decoder(X, **given))[:, :3]
    if argument == "decoder_attention_mask":
        expected = np.array(to_numpy(decoder(X[:, :3])))
        np.testing.assert_allclose(found, expected, atol=1e-5)
    else:
        changed = X.copy()
        changed[:, 5] += 1.0
        assert np.abs(to_numpy(decoder(changed, **given))[:, :3] - found).max() > 1e-4


def test_a_decoder_refuses_an_agf_that_is_not_causal():
    model = family("gpt2").make()
    with pytest.raises(ValueError, match=r"earlier tokens only\. Received: causal=False"):
        keras_graphattn.convert(model, "agf", causal=False)


class OverAxes(keras.layers.Layer):
    """Attention over an axis of its own; one attribute has a name like that of cross-attention."""

    def __init__(self, axes, **kwargs):
        super().__init__(**kwargs)
        self.attention = keras.layers.MultiHeadAttention(2, 4, attention_axes=axes)
        self.across_tokens = keras.layers.MultiHeadAttention(2, 4, attention_axes=axes)

    def build(self, shape):
        self.attention.build(shape, shape)
        self.across_tokens.build(shape, shape)

    def call(self, x):
        x = self.attention(x, x)
        return self.across_tokens(x, x)


@pytest.mark.parametrize("axes", [(1,), (2,), (1, 2), (-2,), None])
def test_attention_over_other_axes_is_converted(axes):
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 8)).astype("float32")
    keras_graphattn.hub.reach(OverAxes)
    layer = OverAxes(axes)
    expected = to_numpy(layer(x))
    keras_graphattn.convert(layer)
    assert len(attentions_of(layer)) == 2
    assert all(isinstance(x, GraphFilterAttention) for x in attentions_of(layer))
    np.testing.assert_allclose(to_numpy(layer(x)), expected, atol=1e-5)
