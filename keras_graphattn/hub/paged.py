"""The refusal of vLLM's paged attention, which `keras_hub.vllm` turns on for a thread.

Its kernel applies attention once, and only as a softmax. A converted layer applies it more than
once, or re-weights it.
"""

import sys
from typing import Any


def refuse_paged_attention(layer: Any) -> None:
    """Refuses a call while this thread serves with vLLM.

    Raises:
        ValueError: If a paged kernel is set.
    """
    module = sys.modules.get("keras_hub.src.vllm.context")
    context: Any = module.get_vllm_context() if module is not None else None
    if context is not None and context.paged_attention_func is not None:
        _refuse(layer)


def _refuse(layer: Any) -> None:
    raise ValueError(
        f"{type(layer).__name__} applies its attention more than once or re-weights it, and vLLM's "
        "paged kernel does neither. Serve the original with vLLM: call "
        "keras_graphattn.revert(model)."
    )


class NoPagedAttention:
    """A base of hooks, for layers that call the paged kernel in a method of their own."""

    def _compute_vllm_attention(self, *arguments: Any) -> Any:
        _refuse(self)
