"""Converted layers of other packages: the base of their families, and the attentions in them.

A converted layer is an instance of a class of three bases: one that attends, one that is its family
(`ConvertedAttention`, `AttentionFamily`), and the layer's own class. The family says where the
projections are, how large the heads are, what the layer does to its scores and how it decodes; and
it overrides the one method of the original that attends. Before the conversion,
`keras_graphattn.hub.families.view` shows a layer with the methods of its family.

Names of methods here are two words or a verb of attending (`head_sizes`, `attend_cached`), because
layers of other packages have attributes such as `output`, `window`, `scale` and `projection`. None
of these attributes may have the name of a method here: tests/hub/test_families.py checks it.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import keras
from keras import ops

from keras_graphattn import biases, filters
from keras_graphattn.checks import one_of, whole
from keras_graphattn.coefficient_rate import (
    FINE_TUNING_MULTIPLIER,
    NAME,
    CoefficientRate,
    Filtered,
    positive,
)
from keras_graphattn.keras_internals import change_class, growing, remove_attribute, scope_of
from keras_graphattn.layers.conversion_mark import ConversionMark
from keras_graphattn.layers.p_laplacian_attention import re_weighting
from keras_graphattn.layers.quantisation import NOT_CALIBRATED, refuse_calibrated
from keras_graphattn.numerics.precision import pad, positions_of
from keras_graphattn.operators.blockwise import BlockwiseOperator
from keras_graphattn.operators.fused import FusedOperator
from keras_graphattn.operators.operator import Operator, Visibility, all_of, four_dimensional
from keras_graphattn.operators.p_laplacian import CachedPLaplacianOperator, PLaplacianOperator
from keras_graphattn.operators.ring import ring_of
from keras_graphattn.operators.softmax import (
    Logits,
    PairRows,
    SoftmaxOperator,
    scores_of,
    zero_hidden_rows,
)
from keras_graphattn.types import Bool, Float, Int, Num, Tensor

DROPOUT = "dropout of the attention matrix"
PATHS = ("dense", "blockwise", "fused")

Options = dict[str, Any]  # of `convert`, by name
Index = int | Int[Tensor, ""]  # a position in the cache, or a length
Tokens = Float[Tensor, "B _ _"]
Heads = Float[Tensor, "B _ _ _"]  # (B, T, N, H), unless stated otherwise
Cache = Float[Tensor, "B _ _ _ _"]  # (B, slots, S, Nkv, H), unless stated otherwise
Mask = Num[Tensor, "..."]  # true where a token is seen
Bias = Num[Tensor, "..."]  # what is added to the scores (B, N, T, S)
Result = Float[Tensor, "..."] | tuple[Num[Tensor, "..."] | None, ...]  # of `call`


class HeadSizes(NamedTuple):
    """Numbers and sizes of the heads, and the factor of the scores Q K^T."""

    num_heads: int
    num_key_value_heads: int
    key_dim: int
    value_dim: int
    scale: float

    @property
    def groups(self) -> int:
        """How many query heads share one head of keys and values."""
        return self.num_heads // self.num_key_value_heads


@dataclass(frozen=True)
class Spelling:
    """The names that a class uses for common attributes, with or without a leading underscore.

    Attributes:
        query: The projection of the queries, as `key`, `value` and `output` are the others. A
            fused projection stands in all three places.
        num_heads: The number of heads. It and the other sizes are read off the shapes of the
            projections by default, which only those have that make heads.
        num_key_value_heads: The number of heads of keys and values; by default that of queries.
        key_dim: The size of a head.
        query_norm: What normalises queries before their rotation; `key_norm` is that of the keys.
            Layers that are made without norms have neither.
        rotary: What rotates queries or keys: a layer or method of `(x, start_index)`.
        scale: The factor of the scores, or a name for it; by default 1 / sqrt(key_dim).
        soft_cap: The soft cap of the scores.
        matrix_dropout: The layer that drops entries of A.
        dropout_before: The layer that drops entries of the outputs of heads.
        dropout_after: The layer that drops entries of the result.
        joins_heads: Whether the output projection takes all heads as one vector.
    """

    query: str = "query_dense"
    key: str = "key_dense"
    value: str = "value_dense"
    output: str = "output_dense"
    num_heads: str = ""
    num_key_value_heads: str = ""
    key_dim: str = ""
    query_norm: str = ""
    key_norm: str = ""
    rotary: str = ""
    scale: str | float = ""
    soft_cap: str = ""
    matrix_dropout: str = ""
    dropout_before: str = ""
    dropout_after: str = ""
    joins_heads: bool = False


def attention_matrix(
    query: Heads, key: Heads, visible: Mask | None, scale: float, logits: Logits
) -> Float[Tensor, "B N T S"]:
    """A, in the dtype of the queries."""
    scores = scores_of(query, key, scale)
    return SoftmaxOperator(scores, visible, dtype=query.dtype, logits=logits).matrix()


def bias_of_layer(bias: Any) -> "biases.Bias | None":
    """A bias of one layer's own, from the option of `convert` for all layers.

    Raises:
        ValueError: For anything that is not a bias, and for one that needs tensors at each call.
    """
    if bias is None:
        return None
    chosen = biases.get(bias)
    if chosen.inputs_at_call:
        raise ValueError(
            f"The bias {type(chosen).__name__} needs the tensors {list(chosen.inputs_at_call)} at "
            "each call, which models of KerasHub do not pass. Use one without `inputs_at_call`."
        )
    own: biases.Bias = type(chosen).from_config(chosen.get_config())
    return own


class Step(NamedTuple):
    """Where the new tokens of a decoding step are, and what they see.

    Attributes:
        position: That of the first new token.
        mask: Boolean tensor of shape (B or 1, 1, t, S).
        update: Optional boolean tensor of shape (B, t). Where it is false, the cache keeps what it
            has of a token, and the token's row is made of that.
    """

    position: Index
    mask: Bool[Tensor, "B? 1 t S"]
    update: Num[Tensor, "B t"] | None = None

    def write(self, cache: Cache, x: Cache, slot: int) -> Cache:
        """The cache (B, slots, S, Nkv, H) with x (B, k, t, Nkv, H) in the slots from `slot`."""
        x = ops.cast(x, cache.dtype)
        start = (0, slot, self.position, 0, 0)
        if self.update is not None:
            update = ops.cast(self.update, "bool")[:, None, :, None, None]
            x = ops.where(update, x, ops.slice(cache, start, ops.shape(x)))
        return ops.slice_update(cache, start, x)


def open_slots(cache: Cache, slots: int) -> Cache:
    """The cache [B, ., S, N, H] with `slots` slots: empty ones added where it has fewer."""
    missing = slots - cache.shape[1]
    if missing <= 0:
        return cache
    return pad(cache, [[0, 0], [0, missing], [0, 0], [0, 0], [0, 0]])


def step_mask(mask: Mask | None, query: Tokens, cache: Cache, index: Index) -> Mask:
    """The mask of the new tokens against the whole cache, (B or 1, 1, t, S)."""
    if mask is None:
        rows = index + positions_of(ops.shape(query)[1])
        mask = (rows[:, None] >= positions_of(cache.shape[2])[None])[None]
    mask = ops.cast(mask, "bool")
    return mask[:, None] if len(mask.shape) == 3 else mask


def in_all_heads(x: Heads, num_heads: int) -> Heads:
    """Keys or values (B, S, Nkv, H), repeated to all query heads (B, S, N, H)."""
    groups = num_heads // x.shape[2]
    return x if groups == 1 else ops.repeat(x, groups, axis=2)


def part(layer: keras.Layer, name: str) -> Any:
    """An attribute of a layer, which some classes keep private."""
    return getattr(layer, f"_{name}") if hasattr(layer, f"_{name}") else getattr(layer, name)


def dropped(
    dropout: keras.Layer, x: Float[Tensor, "..."], training: bool | None
) -> Float[Tensor, "..."]:
    """Sets some entries of x to 0 in training; Keras decides it if `training` is `None`."""
    return dropout(x) if training is None else dropout(x, training=training)


def keras_hub_utilities() -> ModuleType:
    """KerasHub's utility module, which is imported if there are layers of KerasHub."""
    return sys.modules["keras_hub.src.utils.keras_utils"]


def refuse_paged_attention(layer: keras.Layer) -> None:
    """Refuses a call while this thread serves with vLLM, whose kernel applies a softmax once."""
    module = sys.modules.get("keras_hub.src.vllm.context")
    context = module.get_vllm_context() if module is not None else None
    if context is not None and context.paged_attention_func is not None:
        raise ValueError(
            f"{type(layer).__name__} applies its attention more than once or re-weights it, and "
            "vLLM's paged kernel does neither. Serve the original with vLLM: call "
            "keras_graphattn.revert(model)."
        )


def class_passing_slots(plain: type, **methods: Callable[..., Any]) -> type:
    """The class of an unconverted layer that passes on the cache slots of other layers."""
    namespace = {"cache_slots": 2, "plain_class": plain, "__module__": plain.__module__}
    return type(plain.__name__, (plain,), {**methods, **namespace})


class CacheSlots:
    """Base of layers that decode: their caches are stacked, so the largest one sets the size."""

    cache_slots: int = 2  # of all layers of the model

    if TYPE_CHECKING:  # what the class of the layer has

        def __getattr__(self, name: str) -> Any: ...

    @property
    def needed_slots(self) -> int:
        """Slots that this layer itself needs: keys, values and what the filter keeps."""
        return 1 + int(self.num_signals)


class AttentionFamily:
    """Base of the families. A family is a class of methods of a converted layer.

    A family sets `spelling`, and overrides the methods in which its layers differ. It overrides the
    method of the original that attends, with the same arguments, and calls `self.attend(query, key,
    value, mask)` in it. If there is a cache, it also overrides `call`, and calls
    `self.attend_cached(...)` in it.

    Attributes:
        spelling: The names of projections and sizes.
        adds_bias: Whether something is added to the scores.
        has_sink: Whether a learned logit takes part in the softmax.
        uses_backend: Whether the original may call the backend's own attention.
        stacks_caches: Whether the layers take a cache, return it as the last of their results, and
            have as many slots in it as the other layers, since the caches of all are stacked.
    """

    spelling: ClassVar[Spelling] = Spelling()
    adds_bias: ClassVar[bool] = False
    has_sink: ClassVar[bool] = False
    uses_backend: ClassVar[bool] = False
    stacks_caches: ClassVar[bool] = False

    plain_class: ClassVar[type]
    family_class: ClassVar[type]

    if TYPE_CHECKING:  # what the layer's own class and the class that attends have

        def __getattr__(self, name: str) -> Any: ...

    # How a layer changes.

    @classmethod
    def has_class(cls, plain: type, module: str) -> bool:
        """Whether a class, which has a name of this family, belongs to the family."""
        return plain.__module__.startswith(module)

    @classmethod
    def check_replacement(cls, replacement: object, classes: str) -> None:
        """Refuses attentions that cannot be used in layers of these classes."""
        if not isinstance(replacement, type) or not issubclass(replacement, ConvertedAttention):
            raise ValueError(
                f"`replacement` of {classes} must be a subclass of "
                "keras_graphattn.hub.families.ConvertedAttention, since these layers change their "
                f"class in place. Received: replacement={replacement!r}"
            )

    def prepared_change(
        self, replacement: type["ConvertedAttention"], parent: keras.Layer, options: Options
    ) -> Callable[[keras.Layer], Callable[[keras.Layer], None]]:
        """A function that changes the layer and returns a function that undoes it.

        It is called on a view. All errors are raised here, before anything changes.
        """
        plain = self.plain_class
        multiplier = positive(NAME, options.pop(NAME, FINE_TUNING_MULTIPLIER), {})
        parameters = inspect.signature(replacement.settings_from).parameters.values()
        names = [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
        unknown = [f"{name}={value!r}" for name, value in options.items() if name not in names]
        if unknown:
            raise ValueError(
                f"{plain.__name__} keeps its own settings when it is converted: options must be "
                f"out of {[*names, NAME]}. Received: {', '.join(unknown)}"
            )
        new_class = class_with(plain, self.family_class, replacement)  # type: ignore[arg-type]
        settings = shown_as(self, new_class).settings_from(**options)
        has_lora = self.has_lora()

        def take_back(layer: keras.Layer) -> None:
            layer.stop()
            change_class(layer, plain)

        def change(layer: keras.Layer) -> Callable[[keras.Layer], None]:
            change_class(layer, new_class)
            try:
                with growing(layer, trains=has_lora), scope_of(layer):
                    layer.start(settings, multiplier)
            except BaseException:
                take_back(layer)
                raise
            return take_back

        return change

    def has_lora(self) -> bool:
        """Whether a projection has LoRA factors."""
        layers = self.projection_layers().values()
        return any(getattr(layer, "lora_enabled", False) for layer in layers)

    def added_variables(self) -> list[keras.Variable]:
        """The weights of a converted layer that the original did not have."""
        return list(getattr(self, "coefficients", []))

    # What a layer says of itself, converted or not.

    def head_sizes(self) -> HeadSizes:
        """The numbers of heads and their sizes."""
        names = self.spelling
        key_dim, heads = (
            getattr(self, name) if name else part(self, projection).partial_output_shape[axis]
            for name, projection, axis in (
                (names.key_dim, names.key, -1),
                (names.num_heads, names.query, -2),
            )
        )
        key_value_heads, value_dim = heads, key_dim
        if names.num_key_value_heads:
            key_value_heads = getattr(self, names.num_key_value_heads)
        elif not names.num_heads:
            key_value_heads, value_dim = part(self, names.value).partial_output_shape[-2:]
        scale = names.scale or key_dim**-0.5
        scale = part(self, scale) if isinstance(scale, str) else scale
        return HeadSizes(heads, key_value_heads, key_dim, value_dim, float(scale))

    def projection_layers(self) -> dict[str, keras.Layer]:
        """The projections of a built layer, by name."""
        names = self.spelling
        return {
            "query": part(self, names.query),
            "key": part(self, names.key),
            "value": part(self, names.value),
            "attention_output": part(self, names.output),
        }

    def refusal_reason(self) -> str | None:
        """The reason why this layer cannot be converted; `None` if it can be."""
        return None

    def beyond_softmax(self) -> tuple[str, ...]:
        """The steps other than a softmax that make A. Only a path that forms A keeps them."""
        names = self.spelling
        terms = {
            "soft cap of the scores": names.soft_cap and getattr(self, names.soft_cap) is not None,
            "bias of the scores": self.adds_bias,
            "sink": self.has_sink,
            DROPOUT: names.matrix_dropout and part(self, names.matrix_dropout).rate > 0.0,
        }
        return tuple(name for name, is_there in terms.items() if is_there)

    def window_sides(self) -> tuple[int | None, int | None] | None:
        """How many tokens before and after itself a token sees; `None` for no such limit."""
        return None

    def calls_backend(self) -> bool:
        """Whether the original calls the backend's own attention, here and now."""
        if not self.uses_backend:
            return False
        if hasattr(self, "_use_fused_attention_op"):
            return bool(self._use_fused_attention_op())
        return bool(keras_hub_utilities().fused_attention_op_available())

    # The way of tokens through a converted layer. `attend` and `attend_rows` belong to the
    # attention.

    def projected_heads(self, inputs: Tokens, index: Index) -> tuple[Heads, ...]:
        """Queries (B, t, N, H), keys and values (B, t, Nkv, H) of new tokens, as they are cached.

        The position of the first token is `index`.
        """
        names = self.spelling
        query, key, value = (
            self.heads_of(name, inputs) for name in (names.query, names.key, names.value)
        )
        query, key = self.placed_heads(query, key, index)
        return query, key, value

    def heads_of(self, name: str, inputs: Tokens) -> Heads:
        """The tokens (B, t, d) through a projection, as heads (B, t, N or Nkv, H)."""
        x = part(self, name)(inputs)
        if len(x.shape) == 4:
            return x
        key_dim = self.settings.sizes.key_dim
        return ops.reshape(x, (*ops.shape(x)[:2], x.shape[-1] // key_dim, key_dim))

    def placed_heads(self, query: Heads, key: Heads, index: Index) -> tuple[Heads, Heads]:
        """Queries and keys after their norms and rotations, from the position `index` on."""
        names = self.spelling
        query_norm, key_norm, rotate = (
            getattr(self, name, None) for name in (names.query_norm, names.key_norm, names.rotary)
        )
        query = query if query_norm is None else query_norm(query)
        key = key if key_norm is None else key_norm(key)
        if rotate is not None:
            query, key = rotate(query, start_index=index), rotate(key, start_index=index)
        return query, key

    def cached_keys(self, keys: Heads) -> Heads:
        """Keys of the cache, (B, S, Nkv, H), in the form for products with queries."""
        return keys

    def score_logits(self, length: Index, bias: Bias | None = None) -> Logits:
        """The changes that the layer makes to its scaled scores for `length` keys.

        The method that attends hands on the bias (B or 1, N, T or 1, S), if there is one.
        """
        soft_cap = self.spelling.soft_cap
        return Logits(soft_cap=getattr(self, soft_cap) if soft_cap else None, bias=bias)

    def logits(self, length: Index, bias: Bias | None = None) -> Logits:
        """`score_logits`, and the bias that `convert` was given."""
        logits, added = self.score_logits(length, bias), getattr(self, "score_bias", None)
        if added is None:
            return logits
        parameters, tensors, wrong, _ = added.of_call({}, {}, length)
        hides_keys = logits.hides_keys or added.hides_keys
        source = PairRows(added, parameters, tensors, wrong)
        return logits._replace(source=source, hides_keys=hides_keys)

    def dropped_matrix(
        self, matrix: Float[Tensor, "B N T S"], training: bool | None
    ) -> Float[Tensor, "B N T S"]:
        """A (B, N, T, S) after the layer's dropout of it."""
        if not self.spelling.matrix_dropout:
            return matrix
        return dropped(part(self, self.spelling.matrix_dropout), matrix, training)

    def merged_heads(self, outputs: Heads, training: bool | None) -> Float[Tensor, "B T _"]:
        """The layer's result, from the outputs of its heads, (B, t, N, H)."""
        names = self.spelling
        if names.joins_heads:
            length = outputs.shape[-2] * outputs.shape[-1]
            outputs = ops.reshape(outputs, (*ops.shape(outputs)[:2], length))
        if names.dropout_before:
            outputs = dropped(part(self, names.dropout_before), outputs, training)
        outputs = part(self, names.output)(outputs)
        if names.dropout_after:
            outputs = dropped(part(self, names.dropout_after), outputs, training)
        return outputs

    def attend_inputs(
        self,
        inputs: Float[Tensor, "B T _"],
        mask: Mask | None = None,
        cache: Cache | None = None,
        index: Index | None = None,
        training: bool | None = None,
        bias: Bias | None = None,
    ) -> Any:
        """The result for all tokens, or for new ones with a cache, if `call` itself attends.

        `index` is `cache_update_index`, which needs a cache.
        """
        if cache is not None:
            return self.attend_cached(inputs, mask, cache, index, training, bias=bias)
        if index is not None:
            raise ValueError(
                "`cache_update_index` needs a `cache`. Received: cache=None, "
                f"cache_update_index={index}"
            )
        query, key, value = self.projected_heads(inputs, 0)
        outputs = self.attend(query, self.cached_keys(key), value, mask, training, bias)
        return self.merged_heads(outputs, training)

    def matrix_of(self, query: Heads, key: Heads, bias: Bias | None) -> Float[Tensor, "B N T T"]:
        """A, where a tower returns it beside its result."""
        logits = self.logits(ops.shape(key)[1], bias)
        return attention_matrix(query, key, None, self.settings.sizes.scale, logits)

    def attend_cached(
        self,
        inputs: Float[Tensor, "B T _"],
        mask: Mask | None,
        cache: Cache,
        cache_update_index: Index | None = None,
        training: bool | None = None,
        *,
        bias: Bias | None = None,
        cache_update_mask: Num[Tensor, "B T"] | None = None,
        projected: tuple[Heads, ...] | None = None,
        gate: Heads | None = None,
    ) -> tuple[Float[Tensor, "B T _"], Cache]:
        """The result for new tokens, and the next cache: keys, values, further signals.

        The first new token has the position `cache_update_index`. The mask, (B, t, S), is against
        the whole cache. Where `cache_update_mask` is false, the cache keeps what it has. Queries,
        keys and values are `projected` where `projected_heads` cannot make them of `inputs` and the
        position only. The gate has factors of the outputs of the heads, (B, t, N, H).
        """
        refuse_paged_attention(self)
        index, update = cache_update_index, cache_update_mask
        self.check_index(index)
        cache = open_slots(cache, max(self.cache_slots, self.needed_slots))
        query, key, value = projected or self.projected_heads(inputs, index)
        visible = self.visible_pairs(query, step_mask(mask, inputs, cache, index), index)
        step = Step(index, visible, update)
        cache = step.write(cache, ops.stack([key, value], axis=1), 0)
        if update is not None:
            start = (0, 1, index, 0, 0)
            value = ops.slice(cache, start, ops.shape(value[:, None]))[:, 0]
        rows = index + positions_of(ops.shape(query)[1])
        length = ops.shape(cache)[2]
        logits = self.logits(length, bias).formed(length, rows)
        value = in_all_heads(value, query.shape[2])
        outputs, cache = self.attend_rows(query, value, cache, step, logits)
        outputs = outputs if gate is None else outputs * gate
        return self.merged_heads(outputs, training), cache

    def visible_pairs(
        self, query: Float[Tensor, "B T N H"], mask: Mask | None, index: Index = 0
    ) -> Mask | None:
        """A mask (B or 1, 1 or N, t, S) joined with the window of the layer.

        With the `index` of the first query, the mask must be given, with all S columns.
        """
        visible = None if mask is None else ops.cast(four_dimensional(mask), "bool")
        window = self.window_sides()
        if window is None:
            return visible
        rows = index + positions_of(ops.shape(query)[1])
        length = ops.shape(query)[1] if mask is None else ops.shape(mask)[-1]
        behind = rows[:, None] - positions_of(length)[None, :]  # (t, S)
        before, after = window
        within = all_of(
            None if before is None else behind <= before,
            None if after is None else behind >= -after,
        )
        return all_of(visible, four_dimensional(within))

    def check_index(self, index: Index | None, cache: str = "cache") -> None:
        """Refuses a cache without the position of the first new token."""
        if index is None:
            raise ValueError(
                f"{type(self).__name__} decodes self-attention: with `{cache}` it needs "
                f"`{cache}_update_index`. Received: {cache}_update_index=None"
            )


@functools.cache
def class_with(plain: type, family: type, attention: type | None = None) -> type:
    """A subclass of `plain` with the methods of a family, and of an attention if converted."""
    name = plain.__name__
    if attention is not None:
        of, what = name.removesuffix("Attention"), attention.__name__.removeprefix("Converted")
        name = f"{of}{what.removesuffix('Attention')}Attention"
    namespace = {
        "plain_class": plain,
        "family_class": family,
        "__module__": __name__,
        "__doc__": f"`{plain.__name__}` as `keras_graphattn.convert` makes it.",
    }
    attending = () if attention is None else (attention,)
    return type(name, (*attending, family, plain), namespace)


def shown_as(layer: keras.Layer, cls: type) -> Any:
    """A view: an object of another class with the attributes of a layer."""
    view: Any = object.__new__(cls)
    object.__setattr__(view, "__dict__", vars(layer))
    return view


class ConvertedAttention(CoefficientRate, ConversionMark, CacheSlots, AttentionFamily):
    """Base of the classes that attend in a converted layer.

    A subclass implements `settings_from`, `operator_of` and `attend_rows`; `add_coefficients` and
    `attended` if it has weights; and `num_signals` if it keeps more than the values of past tokens.

    Attributes:
        settings: What `settings_from` returned, and `sizes`, the `HeadSizes` of the layer.
        converted_from: What `revert` and a saved file need, a `ConversionRecord`.
    """

    def settings_from(self, **options: Any) -> Options:
        """The settings of a layer, from the options of `convert`: its keywords are the options.

        It is called before the layer changes, on a view that shows the layer with this class.

        Raises:
            ValueError: For options that cannot be used.
        """
        raise NotImplementedError

    def operator_of(
        self,
        query: Float[Tensor, "B T N H"],
        key: Float[Tensor, "B T N H"],
        value: Float[Tensor, "B T N D"],
        visibility: Visibility,
        logits: Logits,
        training: bool | None,
    ) -> Operator:
        """The operator of all tokens."""
        raise NotImplementedError

    def attended(self, operator: Operator, value: Heads) -> Heads:
        """H(A) V; by default A V."""
        return operator(value)

    def attend(
        self,
        query: Heads,
        key: Heads,
        value: Heads,
        mask: Mask | None = None,
        training: bool | None = None,
        bias: Bias | None = None,
    ) -> Heads:
        """Outputs of all tokens. Several query heads may share a head of keys and values.

        The mask has the shape (T, T), (B, T, T) or (B, N, T, T); true is visible.
        """
        for projection in self.projection_layers().values():
            if projection.quantization_mode in NOT_CALIBRATED:
                refuse_calibrated(self, projection)
        num_heads = query.shape[2]
        key, value = in_all_heads(key, num_heads), in_all_heads(value, num_heads)
        visibility = Visibility(self.visible_pairs(query, mask))
        logits = self.logits(ops.shape(key)[1], bias)
        operator = self.operator_of(query, key, value, visibility, logits, training)
        return operator.finished(self.attended(operator, value))

    def attend_rows(
        self, query: Heads, value: Heads, cache: Cache, step: Step, logits: Logits
    ) -> tuple[Heads, Cache]:
        """Outputs (B, t, N, H) of new tokens, and the cache with their further signals.

        The values are those of the new tokens, (B, t, N, H). The cache has their keys and values.
        """
        raise NotImplementedError

    def add_coefficients(self) -> None:
        """Makes the weights of the layer that the original does not have."""

    @property
    def num_signals(self) -> int:
        """How many signals of past tokens the layer keeps, including their values."""
        return 1

    @property
    def needed_slots(self) -> int:
        """Keys and values, and Nq / Nkv slots for each further signal: those are per query head."""
        return 2 + (self.num_signals - 1) * int(self.settings.sizes.groups)

    def start(self, settings: Options, multiplier: float) -> None:
        """Gives the layer its settings and its new weights; its class has changed already."""
        self._multiplier = multiplier
        bias = settings.get("bias")
        self.settings = SimpleNamespace(**settings, sizes=self.head_sizes())
        self.add_coefficients()
        if bias is not None:
            self.score_bias = bias
            shape = (None, None, self.settings.sizes.num_heads, None)
            bias.build_in(self, shape, (None, None, None))

    def stop(self) -> None:
        """Removes the settings and the new weights again."""
        added = {id(variable) for variable in self.coefficients}
        if getattr(self, "score_bias", None) is not None:
            remove_attribute(self, "score_bias")
        ours = ("settings", "converted_from", "cache_slots", "_multiplier", "_coefficient_names")
        for name, value in list(vars(self).items()):
            if name in ours or id(value) in added:
                remove_attribute(self, name)

    def get_config(self) -> Options:
        """The configuration of the layer, for display: a converted layer is not made from it."""
        config = keras.Layer.get_config(self)
        options = self.converted_from.request.options
        return {**config, NAME: self._multiplier, **keras.saving.serialize_keras_object(options)}

    @classmethod
    def from_config(cls, config: Options) -> keras.Layer:
        raise ValueError(
            f"{cls.__name__} is made by keras_graphattn.convert from a built "
            f"{cls.plain_class.__name__} only. Received: config={config!r}. Save and load the "
            "model or the backbone that it is in."
        )


class GroupedOperator:
    """The rows of A for new tokens, as an operator that keeps what it is applied to.

    Query heads share keys and values in the cache [B, slots, S, Nkv, H]. What a filter keeps beyond
    the values, such as A V, is one signal for each query head, and takes Nq / Nkv slots.

    The first call must apply the rows to the values, which are already in the cache. Each further
    call writes the new tokens' signal into the next slots and applies the rows to the whole signal.
    Calls must come in the same order at each step, as a filter makes them.
    """

    def __init__(
        self,
        matrix: Float[Tensor, "B N T S"],
        values: Float[Tensor, "B T N H"],
        cache: Cache,
        step: Step,
        groups: int,
    ) -> None:
        batch, _, new, length = ops.shape(matrix)
        self.heads = cache.shape[3]
        self.grouped = ops.reshape(matrix, (batch, self.heads, groups, new, length))
        self.values = values
        self.cache = cache
        self.step = step
        self.groups = groups
        self.calls = 0

    def __call__(self, x: Float[Tensor, "B T N H"]) -> Float[Tensor, "B T N H"]:
        if self.calls == 0:
            if x is not self.values:
                raise ValueError(
                    "The cache of grouped attention holds the values once for all query heads: "
                    "the first application of a filter's operator must be to the values "
                    "themselves. Received: another signal."
                )
            signal = self.cache[:, 1]  # (B, S, Nkv, H)
            outputs = ops.einsum("bkgts,bskh->btkgh", self.grouped, signal)
        else:
            outputs = ops.einsum("bkgts,bgskh->btkgh", self.grouped, self._written(x))
        self.calls += 1
        return ops.reshape(outputs, ops.shape(x))

    def _written(self, x: Heads) -> Cache:
        """The whole signal (B, groups, S, Nkv, H), that of the new tokens written into it."""
        first = 2 + (self.calls - 1) * self.groups
        batch, new, _, size = ops.shape(x)
        slots = ops.reshape(x, (batch, new, self.heads, self.groups, size))
        slots = ops.transpose(slots, (0, 3, 1, 2, 4))  # (B, groups, t, Nkv, H)
        self.cache = self.step.write(self.cache, slots, first)
        return self.cache[:, first : first + self.groups]


class ConvertedGraphFilter(Filtered, ConvertedAttention):
    """A filter of `keras_graphattn.filters` over the layer's own attention matrix (GFSA)."""

    def settings_from(  # type: ignore[override]
        self,
        *,
        filter: str | dict[str, Any] | filters.Filter = "first_order",
        order: int | None = None,
        attention_path: str | None = None,
        block_size: int = 512,
        bias: Any = None,
    ) -> Options:
        if attention_path is not None:
            one_of(*PATHS)("attention_path", attention_path, {})
        if attention_path not in (None, "dense") and (terms := self.beyond_softmax()):
            raise ValueError(
                f"These layers have a {' and a '.join(terms)}, which only the dense path keeps. "
                f'Received: attention_path={attention_path!r}. Use attention_path="dense".'
            )
        polynomial = filters.get(filter, order)
        polynomial.coefficients(self.head_sizes().num_heads)  # refuses start values for others
        return {
            "filter": polynomial,
            "attention_path": attention_path,
            "block_size": whole()("block_size", block_size, {}),
            "bias": bias_of_layer(bias),
        }

    def add_coefficients(self) -> None:
        self.add_filter_weights(self.settings.filter, self.settings.sizes.num_heads)

    @property
    def num_signals(self) -> int:
        return int(self.settings.filter.num_applications)

    @property
    def attention_path(self) -> str:
        """The path of the full pass.

        By default, `"fused"` where the original calls a fused kernel of this device, or `"dense"`.
        """
        if self.settings.attention_path is not None:
            return str(self.settings.attention_path)
        utilities = keras_hub_utilities()
        is_fused = (utilities.running_on_gpu() or utilities.running_on_tpu()) and (
            self.calls_backend() and not self.beyond_softmax() and self.settings.bias is None
        )
        return "fused" if is_fused else "dense"

    def attended(self, operator: Operator, value: Heads) -> Heads:
        return self.filtered(self.settings.filter, operator, value)

    def operator_of(
        self,
        query: Float[Tensor, "B T N H"],
        key: Float[Tensor, "B T N H"],
        value: Float[Tensor, "B T N D"],
        visibility: Visibility,
        logits: Logits,
        training: bool | None,
    ) -> Operator:
        scale, path = self.settings.sizes.scale, self.attention_path
        if path != "dense" and not logits._replace(source=None).is_plain:
            raise ValueError(
                f"{type(self).__name__} was given a bias of its scores, which only the dense path "
                f'keeps. Received: attention_path="{path}". Convert with attention_path="dense".'
            )
        size = self.settings.block_size
        if path != "dense":
            ring = ring_of(query, key, visibility, scale, size, logits)
            if ring is not None:
                return ring
        if path == "blockwise":
            return BlockwiseOperator(query, key, visibility, scale, size, logits)
        if path == "fused":
            flash = keras.config.is_flash_attention_enabled()
            return FusedOperator(query, key, visibility, scale, flash, logits)
        return SoftmaxOperator(
            scores_of(query, key, scale),
            visibility.joined(ops.shape(key)[1]),
            dtype=query.dtype,
            logits=logits,
            dropout=lambda matrix: self.dropped_matrix(matrix, training),
            overwrite=True,
        )

    def attend_rows(
        self, query: Heads, value: Heads, cache: Cache, step: Step, logits: Logits
    ) -> tuple[Heads, Cache]:
        sizes: HeadSizes = self.settings.sizes
        key = in_all_heads(self.cached_keys(cache[:, 0]), sizes.num_heads)  # (B, S, N, H)
        matrix = attention_matrix(query, key, step.mask, sizes.scale, logits)  # (B, N, t, S)
        operator = GroupedOperator(matrix, value, cache, step, sizes.groups)
        outputs = self.filtered(self.settings.filter, operator, value)
        return zero_hidden_rows(outputs, step.mask), operator.cache


class ConvertedPLaplacian(ConvertedAttention):
    """The layer's own attention, re-weighted by the distances between values (p-LaT).

    It adds no weight. Decoding needs keys and values only: the cache stays as it is. A layer with
    dropout of its attention matrix drops entries of the re-weighted one, and forms it for all rows
    at once.
    """

    def settings_from(  # type: ignore[override]
        self,
        *,
        p: float | Sequence[float] | None = None,
        epsilon: float = 0.1,
        diagonal: str = "smooth",
        block_size: int = 512,
        bias: Any = None,
    ) -> Options:
        return {
            "numbers": re_weighting(p, epsilon, diagonal, self.head_sizes().num_heads),
            "block_size": whole()("block_size", block_size, {}),
            "bias": bias_of_layer(bias),
        }

    def operator_of(
        self,
        query: Float[Tensor, "B T N H"],
        key: Float[Tensor, "B T N H"],
        value: Float[Tensor, "B T N D"],
        visibility: Visibility,
        logits: Logits,
        training: bool | None,
    ) -> Operator:
        is_dropped = DROPOUT in self.beyond_softmax()
        scale, numbers = self.settings.sizes.scale, self.settings.numbers
        size = self.settings.block_size
        if not is_dropped and logits.is_plain:
            ring = ring_of(query, key, visibility, scale, size, logits, (numbers, value))
            if ring is not None:
                return ring
        return PLaplacianOperator(
            query,
            key,
            value,
            numbers,
            visibility,
            scale=scale,
            logits=logits,
            block_size=size,
            dropout=(lambda x: self.dropped_matrix(x, training)) if is_dropped else None,
        )

    def attend_rows(
        self, query: Heads, value: Heads, cache: Cache, step: Step, logits: Logits
    ) -> tuple[Heads, Cache]:
        sizes, numbers = self.settings.sizes, self.settings.numbers
        keys, values = self.cached_keys(cache[:, 0]), cache[:, 1]
        keys, values = (in_all_heads(x, sizes.num_heads) for x in (keys, values))
        signals = values[:, None]
        operator = CachedPLaplacianOperator(
            query, keys, value, numbers, signals, step.position, step.mask, sizes.scale, logits
        )
        return operator.finished(operator(value)), cache
