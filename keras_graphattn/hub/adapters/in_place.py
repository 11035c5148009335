"""The base of adapters for attention of other packages' own classes: the class changes in place.

Such a layer cannot be built anew: its `get_config` may say too little, and no layer of this
package has its projections. So the built layer becomes an instance of a subclass of its class.
The subclass overrides the one method that attends, and adds the filter's coefficients. All else
stays the very same: weights, paths, quantisation, LoRA factors, and everything that points at the
layer.
"""

import inspect
import sys
from collections.abc import Mapping
from typing import Any, ClassVar

from keras_graphattn.coefficient_rate import FINE_TUNING_MULTIPLIER, NAME, positive
from keras_graphattn.hub.adapters.adapter import AttentionAdapter, Shell
from keras_graphattn.hub.converted import ConvertedAttention
from keras_graphattn.hub.converted_filter import ConvertedGraphFilter
from keras_graphattn.hub.converted_p_laplacian import ConvertedPLaplacian
from keras_graphattn.hub.logits import Logits
from keras_graphattn.keras_internals import change_class, growing, scope_of

Tensor = Any


class InPlaceAdapter(AttentionAdapter):
    """Base of adapters whose layers change their class.

    A subclass sets `classes`, the names of what holds the layers, and `hook`. It writes `sizes`,
    `projections` and `is_causal`; and, for layers with a cache, `projected` and `output`. It
    writes `logits`, `window`, `cached_keys` and `dropped` where the layer has such a thing: every
    attention uses them, in the full pass and in decoding.

    Attributes:
        module: How the names of the modules of the classes start.
        hook: A class with the methods that change. It is called like the original: the method
            that attends calls `self.attend(query, key, value, mask)`, and `call`, where there is
            a cache, `self.attend_cached(...)`.
    """

    module: str = ""
    hook: type = object
    replacements: ClassVar[Mapping[str, type[ConvertedAttention]]] = {
        "graph_filter": ConvertedGraphFilter,
        "p_laplacian": ConvertedPLaplacian,
    }
    _classes: ClassVar[dict[tuple[type, type, type], type]] = {}

    def fits(self, cls: type) -> bool:
        return cls.__module__.startswith(self.module)

    def check_replacement(self, replacement: Any) -> None:
        if not isinstance(replacement, type) or not issubclass(replacement, ConvertedAttention):
            raise ValueError(
                f"`replacement` of {' or '.join(self.classes)} must be a subclass of "
                "keras_graphattn.hub.adapters.ConvertedAttention, since these layers change their "
                f"class in place. Received: replacement={replacement!r}"
            )

    def projected(self, layer: Any, inputs: Tensor, index: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, t, N, H), keys and values (B, t, Nkv, H) of new tokens, as they are cached.

        Args:
            layer: The layer.
            inputs: The tokens, (B, t, d).
            index: The position of the first of them.
        """
        raise NotImplementedError

    def output(self, layer: Any, outputs: Tensor, training: bool | None) -> Tensor:
        """The layer's result, (B, t, d), from the outputs of its heads, (B, t, N, H)."""
        raise NotImplementedError

    def logits(self, layer: Any, length: Any, given: Any = None) -> Logits:
        """What the layer does to its scaled scores: soft cap, bias, sink.

        `sizes` names the same in `beyond_softmax`.

        Args:
            layer: The layer.
            length: Number of keys.
            given: What the hook hands on of the arguments of the call, if anything.
        """
        return Logits()

    def window(self, layer: Any) -> tuple[int | None, int | None] | None:
        """How many tokens before and after itself a token sees; `None` for no such limit."""
        return None

    def cached_keys(self, layer: Any, keys: Tensor) -> Tensor:
        """Keys of the cache, (B, S, Nkv, H), as queries are multiplied by them."""
        return keys

    def dropped(self, layer: Any, matrix: Tensor, training: bool | None) -> Tensor:
        """The attention matrix (B, N, T, S) after the layer's dropout of it."""
        return matrix

    def calls_backend(self, layer: Any) -> bool:
        """Whether the original calls the backend's own attention, here and now."""
        return False

    def calls_kernel(self, layer: Any) -> bool:
        """Whether the original calls a fused kernel of this device. A graph filter does then, too.

        The filter calls it once for each application of A, and A is not formed.
        """
        if not self.calls_backend(layer):
            return False
        utilities = keras_hub_utilities()
        return bool(utilities.running_on_gpu() or utilities.running_on_tpu())

    def is_ready(self, layer: Any) -> bool:
        return bool(layer.built)

    def converted_class(self, plain: type, replacement: type) -> type:
        """The subclass of `plain` that attends as `replacement` does."""
        key = (plain, self.hook, replacement)
        if key not in self._classes:
            of, what = plain.__name__.removesuffix("Attention"), replacement.__name__
            namespace = {
                "adapter": self,
                "plain_class": plain,
                "__module__": __name__,
                "__doc__": f"`{plain.__name__}` as `keras_graphattn.convert` makes it.",
            }
            bases = (replacement, self.hook, plain)
            name = f"{of}{what.removeprefix('Converted').removesuffix('Attention')}Attention"
            self._classes[key] = type(name, bases, namespace)
        return self._classes[key]

    def prepared(self, site: Any, request: Any) -> tuple[type, dict[str, Any], float, Shell]:
        """The new class, its settings, the multiplier of its rate, and what `revert` needs."""
        layer: Any = site.layer
        replacement: Any = self.replacement(request.attention)
        if not layer.built:
            raise ValueError(
                f"'{site.path}' is not built, and {type(layer).__name__} can be converted only "
                "once it is. Build the model, or call it on data once."
            )
        plain = getattr(type(layer), "plain_class", type(layer))
        options = request.own_options()
        multiplier = positive(NAME, options.pop(NAME, FINE_TUNING_MULTIPLIER), {})
        _check_options(options, replacement, plain)
        settings = replacement.settings_from(self.sizes(layer), **options)
        new_class = self.converted_class(plain, replacement)
        return new_class, settings, multiplier, Shell(self, request)

    def put(self, site: Any, prepared: Any) -> None:
        layer = site.layer
        new_class, settings, multiplier, shell = prepared
        found = self.projections(layer).values()
        has_lora = any(getattr(projection, "lora_enabled", False) for projection in found)
        change_class(layer, new_class)
        try:
            with growing(layer, trains=has_lora), scope_of(layer):
                layer.start(settings, multiplier)
            layer.converted_from = shell
        except BaseException:
            self.revert(site)
            raise

    def revert(self, site: Any) -> None:
        layer = site.layer
        layer.stop()
        change_class(layer, type(layer).plain_class)


def keras_hub_utilities() -> Any:
    """KerasHub's module that knows the device; KerasHub is imported where its layers are."""
    return sys.modules["keras_hub.src.utils.keras_utils"]


def _check_options(options: dict[str, Any], replacement: Any, plain: type) -> None:
    parameters = inspect.signature(replacement.settings_from).parameters.values()
    taken = [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    unknown = [name for name in options if name not in taken]
    if unknown:
        raise ValueError(
            f"{plain.__name__} keeps its own settings when it is converted: options must be out "
            f"of {[*taken, NAME]}. Received: "
            f"{', '.join(f'{name}={options[name]!r}' for name in unknown)}"
        )
