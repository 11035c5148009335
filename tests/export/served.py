"""Runs the graph of a SavedModel as a server does, in a process that has no Keras.

    python served.py SAVED_MODEL_FOLDER INPUTS.npz OUTPUTS.npz

INPUTS.npz has one array for each input. Its label names the batch, the signature and the input,
such as `3:serving_default:series`. OUTPUTS.npz then has `3:classes`. The script loads the model
once. In a test, `run_in_process` runs the script, and `assert_served` compares the outputs.
"""

import sys
from pathlib import Path

import numpy as np

from tests.recipes.command_line import run_to_its_end


def signature_of(folder, name="serving_default"):
    """Shape and dtype of the inputs and outputs of one signature."""
    from tensorflow.core.protobuf import saved_model_pb2
    from tensorflow.dtypes import as_dtype

    content = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    signature = content.meta_graphs[0].signature_def[name]
    return tuple(
        {
            key: (tuple(d.size for d in info.tensor_shape.dim), as_dtype(info.dtype).name)
            for key, info in infos.items()
        }
        for infos in (signature.inputs, signature.outputs)
    )


def run_in_process(folder, batches, scratch, signatures=None):
    """Runs batches (a list of name -> array) through a SavedModel in a separate process.

    Returns the list of outputs, each name -> array. `scratch` is a folder for the arrays.
    `signatures` names the signature of each batch; the default is `serving_default`.
    """
    files = [Path(scratch) / "inputs.npz", Path(scratch) / "outputs.npz"]
    signatures = signatures or ["serving_default"] * len(batches)
    labelled = {
        f"{index}:{signature}:{name}": array
        for index, (signature, batch) in enumerate(zip(signatures, batches, strict=True))
        for name, array in batch.items()
    }
    np.savez(files[0], **labelled)
    run_to_its_end(__file__, folder, *files)
    results = [{} for _ in batches]
    with np.load(files[1]) as arrays:
        for label in arrays:
            index, name = label.split(":", 1)
            results[int(index)][name] = arrays[label]
    return results


def assert_served(folder, batches, expected, scratch, signatures=None, tolerance=1e-5):
    """Compares a SavedModel with Keras' outputs: `expected` has name -> array for each batch."""
    results = run_in_process(folder, batches, scratch, signatures)
    for batch, result, arrays in zip(batches, results, expected, strict=True):
        assert set(result) == set(arrays)
        shapes = {name: array.shape for name, array in batch.items()}
        for name, array in arrays.items():
            assert np.isfinite(array).all(), (name, shapes)
            assert result[name].dtype == np.float32
            error = np.abs(result[name] - array).max() / max(1.0, np.abs(array).max())
            assert error < tolerance, (name, shapes, error)


def main(folder, inputs, outputs):
    sys.modules["keras"] = None  # whatever asks for Keras fails
    import tensorflow as tf

    batches, answers = {}, {}
    with np.load(inputs) as arrays:
        for label in arrays:
            batch, signature, name = label.split(":")
            batches.setdefault((batch, signature), {})[name] = arrays[label]
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        signatures = tf.compat.v1.saved_model.load(session, ["serve"], folder).signature_def
        for (batch, name), arrays_of_inputs in batches.items():
            signature = signatures[name]
            assert set(arrays_of_inputs) == set(signature.inputs)
            feeds = {signature.inputs[key].name: array for key, array in arrays_of_inputs.items()}
            fetches = {key: info.name for key, info in signature.outputs.items()}
            outputs_by_name = session.run(fetches, feeds)
            answers |= {f"{batch}:{key}": array for key, array in outputs_by_name.items()}
    np.savez(outputs, **answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
