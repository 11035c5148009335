"""Presets of encoder-decoders: CodeT5's checkpoints, which KerasHub does not read, and BART's.

CodeT5 is a T5 whose tokenizer is of RoBERTa's kind. A folder of its checkpoint has `config.json`,
`vocab.json`, `merges.txt`, and `model.safetensors` or `pytorch_model.bin`.

Sources: Wang et al., "CodeT5", arXiv 2109.00859; Lewis et al., "BART", arXiv 1910.13461.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import keras_hub
import numpy as np

from keras_graphattn.hub import reach
from recipes.common.command.parsing import UsageError
from recipes.common.data.sources import loading_preset, refuse_converted
from recipes.common.storage import read_json

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
# What KerasHub's T5 computes, by the setting of a checkpoint, which has it too where it is missing.
COMPUTED = {
    "feed_forward_proj": "relu",
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
}
PROJECTIONS = {"query": "q", "key": "k", "value": "v", "output": "o"}


@keras.saving.register_keras_serializable(package="keras_graphattn_recipes")
class BartTextClassifierPreprocessor(keras_hub.models.RobertaTextClassifierPreprocessor):
    """`<s> text </s>` for BART, as for RoBERTa."""

    backbone_cls = keras_hub.models.BartBackbone
    tokenizer_cls = keras_hub.models.BartTokenizer


@keras.saving.register_keras_serializable(package="keras_graphattn_recipes")
class CodeT5TextClassifierPreprocessor(keras_hub.models.RobertaTextClassifierPreprocessor):
    """`<s> text </s>` for CodeT5, whose tokenizer is of RoBERTa's kind."""

    backbone_cls = keras_hub.models.T5Backbone


for _preprocessor in (BartTextClassifierPreprocessor, CodeT5TextClassifierPreprocessor):
    reach(_preprocessor)  # so that presets with converted attention load, too


def backbone_of(preset: str, name: str) -> Any:
    """The pretrained model of a preset, an encoder or an encoder-decoder of KerasHub.

    Raises:
        UsageError: For a preset that cannot be loaded, or whose attention is converted already.
    """
    with loading_preset(preset):
        if _model_type(preset) == "t5":
            return codet5(Path(preset), name)
        backbone = keras_hub.models.Backbone.from_preset(preset, name=name)
    refuse_converted(preset, backbone)
    return backbone


def preprocessor_of(preset: str, length: int) -> Any:
    """The preset's tokenizer, and what packs a text between the first token and the last one.

    Raises:
        UsageError: For a preset that cannot be loaded.
    """
    with loading_preset(preset):
        if _model_type(preset) == "t5":
            files = [str(_file(Path(preset), name)) for name in ("vocab.json", "merges.txt")]
            tokenizer = keras_hub.models.RobertaTokenizer(*files)
            return CodeT5TextClassifierPreprocessor(tokenizer, sequence_length=length)
        return keras_hub.models.TextClassifierPreprocessor.from_preset(
            preset, sequence_length=length
        )


def _model_type(preset: str) -> str | None:
    """The kind of model that a folder of a Hugging Face checkpoint names; `None` for others."""
    model_type = (read_json(Path(preset) / "config.json") or {}).get("model_type")
    if model_type == "plbart":
        raise UsageError(
            f"--preset {preset} is PLBART, which KerasHub does not read (model type 'plbart'): it "
            "has neither its scaled embeddings nor its tokenizer. Give BART, CodeT5 or CodeBERT"
        )
    return model_type


def codet5(folder: Path, name: str) -> Any:
    """KerasHub's `T5Backbone` with the weights of a folder of CodeT5's checkpoint.

    Raises:
        UsageError: For a checkpoint that is not whole, or that KerasHub's T5 does not compute.
    """
    config = read_json(folder / "config.json")
    for setting, value in {**COMPUTED, "num_decoder_layers": config["num_layers"]}.items():
        received = config.get(setting, value)
        if received != value:
            raise UsageError(
                f"--preset {folder}: expected {setting} {value!r} in config.json, which is what "
                f"KerasHub's T5 computes and what CodeT5-small and CodeT5-base have; received "
                f"{received!r}"
            )
    backbone = keras_hub.models.T5Backbone(
        vocabulary_size=config["vocab_size"],
        num_layers=config["num_layers"],
        num_heads=config["num_heads"],
        hidden_dim=config["d_model"],
        intermediate_dim=config["d_ff"],
        key_value_dim=config["d_kv"],
        dropout=config["dropout_rate"],
        activation="relu",
        use_gated_activation=False,
        layer_norm_epsilon=config["layer_norm_epsilon"],
        name=name,
    )
    path = _file(folder, *WEIGHTS)
    weights = _read(path)
    for variable, key in weights_of(backbone):
        is_kernel = variable.name == "kernel"
        shape = tuple(variable.shape)[:: -1 if is_kernel else 1]
        if key not in weights or weights[key].shape != shape:
            received = weights[key].shape if key in weights else "no such weight"
            raise UsageError(
                f"{path}: by config.json, expected {key} of the shape {shape}; received {received}"
            )
        variable.assign(weights[key].T if is_kernel else weights[key])
    return backbone


def weights_of(backbone: Any) -> Iterator[tuple[keras.Variable, str]]:
    """Each weight of a `T5Backbone`, and its name in a checkpoint. Kernels are transposed there."""
    yield backbone.token_embedding.embeddings, "shared.weight"
    for tower in ("encoder", "decoder"):
        for number, layer in enumerate(getattr(backbone, f"{tower}_transformer_layers")):
            block = f"{tower}.block.{number}.layer"
            parts = {"SelfAttention": (layer.self_attention, layer.self_attention_layer_norm)}
            if tower == "decoder":
                parts["EncDecAttention"] = layer.cross_attention, layer.cross_attention_layer_norm
            for place, (kind, (attention, norm)) in enumerate(parts.items()):
                for ours, theirs in PROJECTIONS.items():
                    kernel = getattr(attention, f"{ours}_projector").kernel
                    yield kernel, f"{block}.{place}.{kind}.{theirs}.weight"
                yield norm.weight, f"{block}.{place}.layer_norm.weight"
                if attention.use_relative_attention_bias:
                    bias = f"{block}.{place}.{kind}.relative_attention_bias.weight"
                    yield attention.relative_attention_bias, bias
            last = f"{block}.{len(parts)}"
            yield layer.input_projector.kernel, f"{last}.DenseReluDense.wi.weight"
            yield layer.output_projector.kernel, f"{last}.DenseReluDense.wo.weight"
            yield layer.layer_norm.weight, f"{last}.layer_norm.weight"
        yield getattr(backbone, f"{tower}_layer_norm").weight, f"{tower}.final_layer_norm.weight"


def _file(folder: Path, *names: str) -> Path:
    """The first of the files that the folder has."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise UsageError(f"--preset {folder} is a T5 checkpoint without {' or '.join(names)}")


def _read(path: Path) -> dict[str, np.ndarray]:
    """The weights of a file by name. Reading it runs no code of the file."""
    try:
        return _read_pickle(path) if path.suffix == ".bin" else _read_safetensors(path)
    except UsageError:
        raise
    except Exception as error:  # a damaged file can raise almost anything
        raise UsageError(
            f"{path} cannot be read: {type(error).__name__}: {error!s:.300}"
        ) from error


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    try:
        from safetensors.numpy import load_file
    except ImportError as error:
        raise UsageError(
            f"{path} is read by safetensors: pip install safetensors ({error})"
        ) from error
    return load_file(path)


def _read_pickle(path: Path) -> dict[str, np.ndarray]:
    try:
        import torch
    except ImportError as error:
        raise UsageError(
            f"{path} is read by PyTorch: pip install torch, or give a folder with {WEIGHTS[0]} "
            f"({error})"
        ) from error
    tensors = torch.load(path, map_location="cpu", weights_only=True)
    return {name: tensor.float().numpy() for name, tensor in tensors.items()}
