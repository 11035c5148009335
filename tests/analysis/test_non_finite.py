import keras
import numpy as np
import pytest

from keras_graphattn.analysis import StopAtNonFiniteLoss
from keras_graphattn.layers import GraphFilterAttention


@keras.saving.register_keras_serializable("tests")
class Logarithm(keras.layers.Layer):
    """A layer whose output is NaN where its input is negative."""

    def call(self, x):
        return keras.ops.log(x)


class Batches(keras.utils.PyDataset):
    """Five batches of ones; the fourth may have other inputs."""

    num_batches = 5

    def __init__(self, fourth=1.0):
        super().__init__()
        self.fourth = fourth

    def __getitem__(self, index):
        inputs = np.ones((2, 4, 3), "float32") * (self.fourth if index == 3 else 1.0)
        return inputs, np.zeros((2, 4, 3), "float32")


def model_of(*layers, loss="mse"):
    inputs = x = keras.Input((4, 3))
    x = GraphFilterAttention(2, 2, name="attention")(x)
    for layer in layers:
        x = layer(x)
    model = keras.Model(inputs, x)
    model.compile(keras.optimizers.SGD(1e-3), loss, jit_compile=False)
    return model


def steep_model():
    """A model whose loss is finite, but has an infinite slope at its first outputs."""
    last = keras.layers.Dense(3, kernel_initializer="zeros", name="last")
    return model_of(last, loss=lambda _, x: keras.ops.sqrt(keras.ops.sum(keras.ops.square(x))))


def stopped(model, batches, has_batches=True):
    callback = StopAtNonFiniteLoss(batches if has_batches else None)
    with pytest.raises(FloatingPointError) as caught:
        model.fit(batches, shuffle=False, callbacks=[callback], verbose=0)
    return str(caught.value)


def test_names_the_step_and_the_layer_whose_output_was_first():
    scale = keras.layers.Rescaling(1.0, name="scale")
    inputs = keras.Input((4, 3))
    x = keras.layers.Dense(3, name="after")(Logarithm(name="logarithm")(scale(inputs)))
    model = keras.Model(inputs, x)
    model.compile("sgd", "mse", jit_compile=False)
    text = stopped(model, Batches(fourth=-1.0))
    assert text.startswith("Training stopped at step 4 of epoch 1: the loss is nan.")
    assert "the output of 'logarithm' (Logarithm)" in text
    for weight in model.weights:  # the weights from the start of the epoch
        assert np.isfinite(keras.ops.convert_to_numpy(weight)).all()


def test_names_the_inputs_and_the_loss():
    text = stopped(model_of(), Batches(fourth=np.nan))
    assert text.endswith("the inputs of the batch")

    def not_finite(target, outputs):
        return keras.ops.sqrt(keras.ops.sum(outputs) * 0.0 - 1.0)

    text = stopped(model_of(loss=not_finite), Batches())
    assert "step 1" in text
    assert text.endswith("the loss (the outputs are finite)")


def test_names_the_weight_of_a_gradient_that_is_not_finite():
    text = stopped(steep_model(), Batches())
    assert "step 2 of epoch 1: the loss is nan" in text
    assert text.endswith("the gradient of 'last/bias'")


def test_without_batches_the_step_is_named():
    text = stopped(model_of(), Batches(fourth=np.nan), has_batches=False)
    assert "step 4 of epoch 1" in text
    assert "`batches`" in text


def test_finite_training_is_left_alone():
    model, again = model_of(), model_of()
    again.set_weights(model.get_weights())
    model.fit(Batches(), shuffle=False, verbose=0)
    again.fit(Batches(), shuffle=False, callbacks=[StopAtNonFiniteLoss(Batches())], verbose=0)
    for weight, other in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(weight, other)


def test_a_last_step_that_breaks_the_weights_is_seen_at_the_end_of_the_epoch():
    class One(Batches):
        num_batches = 1

    text = stopped(steep_model(), One())
    assert "the last step of epoch 1: weights are not finite" in text
    assert text.endswith("the gradient of 'last/bias'")


def test_weights_are_copied_once_for_an_epoch(monkeypatch):
    copies = []
    copy = keras.ops.copy
    monkeypatch.setattr("keras.ops.copy", lambda x: copies.append(x) or copy(x))
    model = model_of()
    model.fit(Batches(), callbacks=[StopAtNonFiniteLoss(Batches())], epochs=2, verbose=0)
    assert len(copies) == 2 * len(model.weights)


def test_refuses_batches_that_have_no_items():
    with pytest.raises(ValueError, match="`batches` must return the batch of a step"):
        StopAtNonFiniteLoss(batches=3)
