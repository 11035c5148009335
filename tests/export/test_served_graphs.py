"""A model of graphs is trained, exported, and answers for graphs of sizes not in the training."""

import keras
import numpy as np
import pytest

from keras_graphattn.export import export_saved_model
from keras_graphattn.graphs import Graph, GraphBatches, precompute
from keras_graphattn.layers import GraphKernelAttention, GraphMeanPooling, MaskedKernelAttention
from keras_graphattn.masks import GraphDiffusion, RandomWalk
from tests.export.served import assert_served
from tests.numerics import BACKEND, to_numpy
from tests.reference_topology import random_edges

WIDTH, WALKS, WALK_LENGTH, TRAINED = 3, 4, 3, range(2, 9)
LARGER = (13, 30)


def graphs_of(sizes):
    random = np.random.default_rng(0)
    return [
        Graph(random_edges(n, 3.0, seed=n), None, random.normal(size=(n, WIDTH)), label=n % 2)
        for n in sizes
    ]


def batches_of(graphs, **options):
    walks = precompute(graphs, "walks", num_walks=WALKS, walk_length=WALK_LENGTH, verbose=False)
    return GraphBatches(graphs, 4, node_arrays={"walks": walks}, **options)


def graph_model():
    inputs = {
        "nodes": keras.Input((None, WIDTH), name="nodes"),
        "node_mask": keras.Input((None,), dtype="bool", name="node_mask"),
        "edges": keras.Input((None, 2), dtype="int32", name="edges"),
        "walks": keras.Input((None, WALKS, WALK_LENGTH), dtype="int32", name="walks"),
    }
    mask = inputs["node_mask"]
    x = keras.layers.Dense(8)(inputs["nodes"])
    by_walks = GraphKernelAttention(2, 4, mask=RandomWalk())
    x = x + by_walks(x, query_mask=mask, mask_inputs={"walks": inputs["walks"]})
    by_heat = MaskedKernelAttention(
        2, 4, mask=GraphDiffusion(operator="normalized_laplacian", initial_time=0.5), path="dense"
    )
    x = x + by_heat(x, query_mask=mask, value_mask=mask, mask_inputs={"edges": inputs["edges"]})
    outputs = keras.layers.Dense(2, name="logits")(GraphMeanPooling()(x, mask=mask))
    return keras.Model(inputs, outputs)


@pytest.mark.slow_on("jax", "torch")
def test_answers_for_sizes_that_were_not_in_training(tmp_path):
    model = graph_model()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    model.fit(batches_of(graphs_of(TRAINED), num_buckets=2, seed=0), epochs=1, verbose=0)
    larger = [batches_of(graphs_of([n - 1, n]))[0][0] for n in LARGER]
    signature = None
    if BACKEND == "jax":  # each size has its own signature
        signature = {
            f"nodes_{n}": {name: array.shape[1:] for name, array in batch.items()}
            for n, batch in zip(LARGER, larger, strict=True)
        }
    options = {} if signature is None else {"signature": signature}
    path = export_saved_model(model, tmp_path / "served", **options)
    expected = [{"logits": to_numpy(model(batch))} for batch in larger]
    assert_served(path, larger, expected, tmp_path, signature and list(signature))
    assert np.abs(expected[0]["logits"][0] - expected[0]["logits"][1]).max() > 1e-3
