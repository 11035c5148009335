"""The refusal of vLLM's paged attention, for the hooks of layers that have a path to it."""

from typing import Any


class NoPagedAttention:
    """A base of hooks: the kernel of vLLM applies attention once, and only as a softmax."""

    def _compute_vllm_attention(self, *arguments: Any) -> Any:
        raise ValueError(
            f"{type(self).__name__} applies its attention more than once or re-weights it, and "
            "vLLM's paged kernel does neither. Serve the original with vLLM: call "
            "keras_graphattn.revert(model)."
        )
