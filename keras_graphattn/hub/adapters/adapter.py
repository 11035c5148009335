"""The base of all adapters: what `convert` has to know about one class of attention layers.

An adapter says which classes of layers it serves, where their projections are, how large their
heads are, whether they are causal, what their cache holds, and which class takes their place for
each attention. `convert` asks adapters only, and knows no class of KerasHub itself.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from keras_graphattn.hub.logits import DROPOUT

Tensor = Any


@dataclass(frozen=True)
class Sizes:
    """The numbers that an attention layer was made with.

    Attributes:
        num_heads: Number of heads of queries.
        key_dim: Size of a head of queries and keys.
        scale: The factor of the scores Q K^T.
        dropout: Dropout probability.
        beyond_softmax: What else makes A: `SOFT_CAP`, `BIAS`, `SINK`, and `DROPOUT` where the layer
            drops entries of A. Only a path that forms A keeps it. `DROPOUT` goes by itself where
            the probability is 0.
        num_key_value_heads: Number of heads of keys and values; by default as many as queries have.
        value_dim: Size of a head of values; by default that of keys.
    """

    num_heads: int
    key_dim: int
    scale: float
    dropout: float = 0.0
    beyond_softmax: tuple[str, ...] = ()
    num_key_value_heads: int = 0
    value_dim: int = 0

    def __post_init__(self) -> None:
        own = {
            "num_key_value_heads": self.num_key_value_heads or self.num_heads,
            "value_dim": self.value_dim or self.key_dim,
            "beyond_softmax": tuple(
                what for what in self.beyond_softmax if what != DROPOUT or self.dropout
            ),
        }
        for name, value in own.items():
            object.__setattr__(self, name, value)

    @property
    def groups(self) -> int:
        """How many query heads share one head of keys and values."""
        return self.num_heads // self.num_key_value_heads


class Shell:
    """What a converted layer keeps for `revert`. Keras does not track what is in here.

    Args:
        adapter: The adapter that made the conversion.
        request: What asked for it.
        layer: The layer that was replaced; `None` where the layer itself changed its class.
    """

    def __init__(self, adapter: "AttentionAdapter", request: Any, layer: Any = None) -> None:
        self.adapter = adapter
        self.request = request
        self.layer = layer


class AttentionAdapter:
    """Base of adapters. Most derive from `InPlaceAdapter`, which writes the last four methods.

    Attributes:
        classes: Names of the classes of attention layers that the adapter serves.
        backbones: Names in `keras_hub.models` of the backbones that hold such layers.
        layers: Names in `keras_hub.layers` of the layers that hold such layers.
        inner_layers: Names of layers inside of those backbones, which have no public names.
        modules: Names of modules of inner layers that `import keras_hub` does not import.
        has_cache: Whether the layers take `cache`, return it as the last of their results, and
            have as many slots in it as the other layers, since the caches of all are stacked.
        holder_configs: For each holder whose own `get_config` fails, by the name of its class, the
            function that tells its configuration.
        cache_argument: The name of the argument of `call` that is the cache.
    """

    classes: Sequence[str] = ()
    backbones: Sequence[str] = ()
    layers: Sequence[str] = ()
    inner_layers: Sequence[str] = ()
    modules: Sequence[str] = ()
    has_cache: bool = False
    holder_configs: ClassVar[Mapping[str, Callable[[Any], dict[str, Any]]]] = {}
    cache_argument: str = "cache"
    replacements: ClassVar[Mapping[str, type]] = {}  # by the name of the attention

    def __init__(self) -> None:
        self.attentions: dict[str, type] = dict(self.replacements)

    def serves(self, layer: Any) -> bool:
        """Whether this adapter is for this layer, which is not converted."""
        return type(layer).__name__ in self.classes and self.fits(type(layer))

    def fits(self, cls: type) -> bool:
        """Whether a class of one of the names in `classes` is the class that is meant."""
        raise NotImplementedError

    def check_replacement(self, replacement: Any) -> None:
        """Refuses a class that cannot take the place of these layers.

        Raises:
            ValueError: With the base that the class must have.
        """
        raise NotImplementedError

    def sizes(self, layer: Any) -> Sizes:
        """The numbers of heads and their sizes."""
        raise NotImplementedError

    def projections(self, layer: Any) -> dict[str, Any]:
        """The projections of a built layer, by name, `"query"` among them."""
        raise NotImplementedError

    def is_causal(self, parent: Any, layer: Any) -> bool:
        """Whether the parent lets tokens see only themselves and tokens before them."""
        raise NotImplementedError

    def is_ready(self, layer: Any) -> bool:
        """Whether the layer can be converted now."""
        return True

    def refusal(self, layer: Any) -> str | None:
        """Why no attention can take the place of this very layer; `None` where one can."""
        return None

    def class_beside(self, layer: Any, slots: int) -> type | None:
        """The class that another layer must have, where all have caches of so many slots.

        Args:
            layer: A layer of the same backbone, of any class.
            slots: The number of slots.

        Returns:
            A class, or `None` where the layer passes on no cache of this kind.
        """
        return None

    def prepared(self, site: Any, request: Any) -> Any:
        """What `put` needs. Whatever can be refused is refused here, before anything changes.

        Args:
            site: Where the layer is.
            request: The name of the attention and its options.

        Raises:
            ValueError: For options that cannot be used.
        """
        raise NotImplementedError

    def put(self, site: Any, prepared: Any) -> None:
        """Makes the conversion."""
        raise NotImplementedError

    def revert(self, site: Any) -> None:
        """Takes the conversion back; all weights but the added ones stay as they are."""
        raise NotImplementedError

    def replacement(self, attention: str) -> type:
        """The class for an attention.

        Raises:
            ValueError: If it has no class for it.
        """
        found = self.attentions.get(attention)
        if found is None:
            raise ValueError(
                f"attention={attention!r} cannot take the place of {' or '.join(self.classes)}: no "
                "class is registered for it that has the projections and the call of this layer. "
                f"Expected one of {sorted(self.attentions)}. Register a class for it with "
                "keras_graphattn.hub.register_attention."
            )
        return found
