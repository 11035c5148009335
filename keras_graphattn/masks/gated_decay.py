"""A decay that follows the tokens: a gate for each head and token, read from a layer's tokens."""

from typing import Any, Unpack

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from keras_graphattn.keras_internals import move
from keras_graphattn.masks.chunked import ChunkedMask, Form
from keras_graphattn.masks.inputs import Tensors
from keras_graphattn.masks.mask import MaskOptions, Shape, finite
from keras_graphattn.numerics.precision import (
    at_least_float32,
    in_one_dtype,
    larger,
    without_padding,
)
from keras_graphattn.types import Bool, Float, Tensor

SHORTEST, LONGEST = 2.0, 1024.0  # tokens that a head remembers at the start
CLOSED = -1000.0  # log of a gate that counts as 0: its exponential is 0 in float64, too


@keras.saving.register_keras_serializable(package="keras_graphattn")
class GatedDecay(ChunkedMask):
    """M[i, j] = f_(j+1) ... f_i for j <= i, else 0, with a gate f between 0 and 1 for each token.

    A layer computes the gates from its tokens, for each head with weights w and b of the mask:

        f_l = sigmoid(w . x_l + b)

    x_l is the token before the projection to queries. So a token can decide to keep what came
    before it, or to forget it. A token that is padding, as a query or as a key, has a gate of 1.
    The product is linear in the length, and decoding has a state of fixed size.

    A layer's call takes no input for this mask. By itself, the mask takes the logarithms of the
    gates with each call: a tensor `log_gates` of shape (B, T, N), with numbers of at most 0.

    As a gate of a token between two others counts, `Product` refuses other masks that hide keys,
    except causal masks and `Segments`. For the same reason, a layer refuses an `attention_mask` of
    pairs.

    Args:
        initial_memory: How many tokens a head remembers at the start, 1 / (1 - f) for w = 0: a
            number above 1, or one for each head. By default 2 * 512^(k / N) for head k = 1 ... N,
            from more than 2 to 1024.
        **kwargs: `name`, `trainable` and `dtype` of a Keras layer, and
            `coefficient_learning_rate_multiplier`, which this mask does not use: its weights are a
            projection, and learn like others.

    Weights:
        `gates/kernel` of shape (d, num_heads), which starts by Glorot's rule, and `gates/bias` of
        shape (num_heads,). They are made if a layer builds the mask.

    Raises:
        ValueError: For an `initial_memory` that is not above 1.

    Example:

    >>> gates = np.array([1.0, 0.5, 0.25], "float32").reshape((1, 3, 1))
    >>> matrix = GatedDecay().dense(log_gates=np.log(gates))
    >>> keras.ops.convert_to_numpy(matrix)[0, 0].round(3).tolist()
    [[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.125, 0.25, 1.0]]

    Source: the scalar gates of Dao and Gu, "Transformers are SSMs" (Mamba-2), arXiv 2405.21060,
    Section 5, and Yang et al., "Gated Linear Attention Transformers", arXiv 2312.06635, Section 4.
    Ours: the normaliser, and the start of the gates.
    """

    inputs_at_call = ("log_gates",)
    reads_tokens = True
    is_causal = True
    has_state = True
    _settings = ("initial_memory",)

    def __init__(
        self, initial_memory: ArrayLike | None = None, **kwargs: Unpack[MaskOptions]
    ) -> None:
        super().__init__(**kwargs)
        if initial_memory is not None:
            memory = finite("initial_memory", initial_memory, positive=True)
            if np.min(memory) <= 1.0:
                raise ValueError(
                    "`initial_memory` must be above 1: a head remembers at least the token itself. "
                    f"Received: initial_memory={initial_memory!r}"
                )
            initial_memory = memory
        self.initial_memory: Any = initial_memory
        # a layer of its own: its weights learn like those of other projections
        self.gates = keras.Layer(name="gates", dtype=self.dtype_policy, trainable=self.trainable)

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        memory = self.initial_memory
        if memory is None:
            heads = np.arange(1, self.num_heads + 1) / self.num_heads
            memory = SHORTEST * (LONGEST / SHORTEST) ** heads
        self._initial_logits = np.log(self._of_heads("initial_memory", memory) - 1.0)

    def _check_built(self) -> None:
        """A call brings the gates, so the matrix needs no weights."""

    def build_reader(self, tokens_shape: Shape) -> None:
        gates, shape, start = self.gates, (tokens_shape[-1], self.num_heads), self._initial_logits
        if not gates.built:
            gates.kernel = gates.add_weight(shape, "glorot_uniform", name="kernel", autocast=False)
            gates.bias = gates.add_weight(
                start.shape,
                lambda shape, dtype: ops.convert_to_tensor(start, dtype=dtype),
                name="bias",
                autocast=False,
            )
            gates.built = True
            move(gates, self)

    def inputs_of_tokens(
        self, tokens: Float[Tensor, "B T d"], kept: Bool[Tensor, "B T"] | None
    ) -> Tensors:
        parts = (tokens, self.gates.kernel.value, self.gates.bias.value)
        tokens, kernel, bias = in_one_dtype(*map(at_least_float32, parts))
        return {"log_gates": without_padding(ops.log_sigmoid(tokens @ kernel + bias), kept)}

    def empty_inputs(self, batch_size: int, length: int, num_heads: int) -> Tensors:
        dtype = "float64" if self.compute_dtype == "float64" else "float32"
        return {"log_gates": ops.zeros((batch_size, length, num_heads), dtype)}

    def form(self, parameters: Tensors, inputs: Tensors) -> Form:
        return Form(causal=True, log_gates=larger(inputs["log_gates"], CLOSED))
