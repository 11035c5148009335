"""Sequences that do not fit on one device: their tokens are split over a mesh."""

from typing import Any

import keras

from keras_graphattn.checks import optional, whole
from keras_graphattn.distribution.checks import axis_of, check_backend, mesh, rules_on


class SequenceParallel(keras.distribution.ModelParallel):  # type: ignore[misc]
    """A `keras.distribution` that splits the tokens of each sequence over devices.

    Every device holds its part of the batch and of the token axis. With n tokens and p devices,
    token tensors have the shape (B, n / p, d) on each device, in the forward and in the backward
    pass. Devices exchange only what attention needs from other tokens. XLA finds out what that is:

    * `MaskedKernelAttention` without a mask, and `AttentiveGraphFilter`: only sums over tokens, of
      shape (B, N, m, D + 1) and (B, N, H, D) per application, for any length.
    * `MaskedKernelAttention` under causal, segment and exponential masks, and the causal
      `AttentiveGraphFilter`: one such sum for each chunk of 64 (or 48) tokens, gathered on all
      devices. Their size is m / 64 of the size of the tokens. The tokens are not exchanged.
    * Dense and blockwise paths, and masks by FFT: all tokens, on each device. Use these only for
      lengths that fit on one device.

    Args:
        device_mesh: A `keras.distribution.DeviceMesh`.
        sequence_axis: The mesh axis over which tokens are split.
        batch_axis: The mesh axis over which examples are split. By default, they are not split.
        layout_map: Layouts of the weights. By default, all weights are whole on every device.
        shortest: Inputs whose second axis is shorter than this do not count as sequences (for
            example one-hot labels). They are not split along this axis.

    Raises:
        ValueError: If the backend is not JAX, the mesh has no such axis, or the devices cannot
            evenly divide a sequence of a batch.

    Example:

    >>> if keras.backend.backend() == "jax":
    ...     mesh = keras.distribution.DeviceMesh((1,), ("sequence",), ["cpu:0"])
    ...     distribution = SequenceParallel(mesh)
    ...     assert distribution.get_data_layout((4, 1024, 16)).axes == (None, "sequence", None)
    ...     assert distribution.get_data_layout((4,)).axes == (None,)
    """

    def __init__(
        self,
        device_mesh: Any,
        sequence_axis: str = "sequence",
        batch_axis: str | None = None,
        *,
        layout_map: Any = None,
        shortest: int = 128,
    ) -> None:
        check_backend()
        mesh("device_mesh", device_mesh, {})
        axis = axis_of(device_mesh)
        axis("sequence_axis", sequence_axis, {})
        optional(axis)("batch_axis", batch_axis, {})
        if batch_axis == sequence_axis:
            raise ValueError(
                "`batch_axis` must be another axis of the mesh than `sequence_axis`. Received: "
                f"{batch_axis!r} for both."
            )
        optional(rules_on(device_mesh))("layout_map", layout_map, {})
        layout_map = keras.distribution.LayoutMap(device_mesh) if layout_map is None else layout_map
        self.sequence_axis, self.batch_axis = sequence_axis, batch_axis
        self.shortest = whole()("shortest", shortest, {})
        names = list(device_mesh.axis_names)
        self._devices = int(device_mesh.shape[names.index(sequence_axis)])
        super().__init__(layout_map=layout_map, batch_dim_name=batch_axis or names[0])

    @property
    def num_model_replicas(self) -> int:
        return 1 if self.batch_axis is None else int(super().num_model_replicas)

    def get_data_layout(self, data_shape: Any) -> Any:
        if not isinstance(data_shape, (list, tuple)):
            raise ValueError(
                f"`data_shape` must be a list of sizes. Received: data_shape={data_shape!r}"
            )
        data_shape = [whole(0)(f"data_shape[{i}]", size, {}) for i, size in enumerate(data_shape)]
        axes: list[str | None] = [self.batch_axis, *[None] * len(data_shape)][: len(data_shape)]
        if len(data_shape) > 1 and data_shape[1] >= self.shortest:
            if data_shape[1] % self._devices:
                raise ValueError(
                    f"The {self._devices} devices of the mesh axis {self.sequence_axis!r} cannot "
                    f"evenly divide a sequence of {data_shape[1]} tokens. Received: a batch of "
                    f"shape {tuple(data_shape)}. Pad the length to a multiple of {self._devices}, "
                    "and mask the padding."
                )
            axes[1] = self.sequence_axis  # (B, T, ...): T is split
        return keras.distribution.TensorLayout(axes, self.device_mesh)
