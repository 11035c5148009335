"""A distribution that splits sequences over devices (JAX). Layers ask it how to attend."""

from collections.abc import Sequence

import keras

from keras_graphattn.checks import instance, one_of, whole


class SequenceParallel(keras.distribution.ModelParallel):  # type: ignore[misc]
    """A `keras.distribution` that splits the tokens of each sequence over devices.

    Every device holds its part of the batch and of the token axis, and all weights. With n tokens
    and p devices, token tensors have the shape (B, n / p, d) on each device, in the forward and in
    the backward pass. Devices exchange only what attention needs from other tokens:

    * `MaskedKernelAttention` without a mask, and `AttentiveGraphFilter`: only sums over tokens, of
      shape (B, N, m, D + 1) and (B, N, H, D) per application, for any length.
    * `MaskedKernelAttention` under causal, segment, exponential and gated masks, and the causal
      `AttentiveGraphFilter`: one such sum for each chunk of 64 (or 48) tokens, gathered on all
      devices. Their size is m / 64 of the size of the tokens. The tokens are not exchanged.
    * `GraphFilterAttention` and `DifferentialAttention` with `attention_path="blockwise"` or
      `"fused"`, layers that `convert` gave this path, and p-LaT, in `PLaplacianAttention` and in
      converted layers, unless it has dropout, a bias, or `attention_path="dense"`: keys and values
      go around a ring of devices, from one to the next, once for each application of A. Each device
      holds the keys of n / p tokens at a time. Padding, causal masks, windows and an
      `attention_mask` are possible, added biases are not. `"fused"` calls no kernel here.
    * All other paths of softmax attention, such as `"dense"`, and masks by FFT: all tokens, on each
      device. Use these only for lengths that fit on one device.

    Args:
        device_mesh: A `keras.distribution.DeviceMesh`.
        sequence_axis: The mesh axis over which tokens are split.
        batch_axis: The mesh axis over which examples are split. By default, they are not split.
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
        device_mesh: keras.distribution.DeviceMesh,
        sequence_axis: str = "sequence",
        batch_axis: str | None = None,
        *,
        shortest: int = 128,
    ) -> None:
        check_backend()
        self._devices = size_of(device_mesh, "sequence_axis", sequence_axis)
        if batch_axis is not None:
            others = [name for name in device_mesh.axis_names if name != sequence_axis]
            one_of(*others)("batch_axis", batch_axis, {})
        self.sequence_axis, self.batch_axis = sequence_axis, batch_axis
        self.shortest = whole()("shortest", shortest, {})
        super().__init__(
            layout_map=keras.distribution.LayoutMap(device_mesh),
            batch_dim_name=batch_axis or device_mesh.axis_names[0],
        )

    @property
    def num_model_replicas(self) -> int:
        return 1 if self.batch_axis is None else int(super().num_model_replicas)

    def get_data_layout(self, data_shape: Sequence[int]) -> keras.distribution.TensorLayout:
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


def parallel_of(shape: Sequence[int]) -> SequenceParallel | None:
    """The current distribution, if it splits the tokens of tensors of this shape (B, T, ...).

    Raises:
        ValueError: If the devices cannot evenly divide the tokens.
    """
    if keras.backend.backend() != "jax":
        return None
    parallel = keras.distribution.distribution()
    if not isinstance(parallel, SequenceParallel):
        return None
    is_split = parallel.get_data_layout(shape).axes[1] is not None
    return parallel if is_split else None


def check_backend() -> None:
    """Raises a `ValueError` if the backend has no `keras.distribution`."""
    if keras.backend.backend() != "jax":
        raise ValueError(
            "Keras distributes weights and tensors over devices on the backend jax only. Received: "
            f"the backend {keras.backend.backend()}. Set KERAS_BACKEND=jax, or on tensorflow build "
            "and compile the model in the scope of a tf.distribute strategy."
        )


def size_of(device_mesh: keras.distribution.DeviceMesh, name: str, axis: str) -> int:
    """The number of devices along the axis of the mesh that the argument `name` gives."""
    mesh = instance(keras.distribution.DeviceMesh, "a keras.distribution.DeviceMesh")
    names = list(mesh("device_mesh", device_mesh, {}).axis_names)
    if not isinstance(axis, str) or axis not in names:
        raise ValueError(
            f"`{name}` must be an axis of the mesh, one of {names}. Received: {name}={axis!r}"
        )
    return int(device_mesh.shape[names.index(axis)])
