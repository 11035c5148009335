"""
Title: Graphs
Author: The keras_graphattn authors
Date created: 2026/11/22
Last modified: 2026/11/22
Description: A graph's masks, what attention sees through them, training on graphs, serving.
Accelerator: None
"""

"""
Attention on the nodes of a graph does not know the edges: each node may see all others. A mask
brings the edges in, as factors on pairs of nodes. This guide draws the masks of one graph, trains a
model on many graphs, and serves it for graphs that are larger than those of the training.
"""

"""
## A graph and its masks

Random places in the plane, in three groups; those near to each other are joined. Nodes are numbered
by their groups. The pictures go to a folder `graphs` in the folder that the environment variable
`GUIDE_OUTPUT` names, or to a new temporary folder. The guide says where.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")  # or "torch", "tensorflow"

import tempfile
from pathlib import Path

import keras
import numpy as np
from scipy.sparse.csgraph import breadth_first_order, connected_components
from scipy.spatial.distance import pdist, squareform

import keras_graphattn
from keras_graphattn.analysis import plot_mask
from keras_graphattn.graphs import Graph, GraphBatches, precompute
from keras_graphattn.layers import EdgeAttention, GraphKernelAttention, GraphMeanPooling
from keras_graphattn.masks import GraphDiffusion, GraphRandomFeatures, RandomWalk, Tree


def grouped_places(random, count, apart=0.0):
    """Places (count, 2) in three round groups, each joined to the three that are nearest to it."""
    radius = 0.75 * np.sqrt(count / 3)
    while True:
        places = []
        for angle in np.pi * (0.5 + np.sort(np.arange(count) % 3) / 1.5):
            centre = 1.25 * radius * np.array([np.cos(angle), np.sin(angle)])
            place = None
            while place is None or (pdist([*places, place]) < apart).any():
                distance, turn = radius * np.sqrt(random.random()), 2 * np.pi * random.random()
                place = centre + distance * np.array([np.cos(turn), np.sin(turn)])
            places.append(place)
        nearest = squareform(pdist(places)).argsort(axis=1)[:, 1:4]
        edges = np.stack([np.repeat(np.arange(count), 3), nearest.ravel()], axis=1)
        graph = Graph(edges, num_nodes=count)
        if connected_components(graph.adjacency())[0] == 1:
            return np.array(places), graph


keras.utils.set_random_seed(0)
places, graph = grouped_places(np.random.default_rng(12), 27, apart=1.0)
print(graph)

"""
Four kinds of masks of this graph:

* `RandomWalk` compares the walks from two nodes (the kernel of GKAT): exactly, or by a few walks.
* `GraphDiffusion` is how much heat has flowed from one node to the other.
* `GraphRandomFeatures` estimates the same by walks, in memory linear in the number of nodes. More
  walks make a better estimate.
* `Tree` knows the distances in a spanning tree only. Its product takes two sweeps over the tree.
"""

_, parents = breadth_first_order(graph.adjacency(), 0, directed=False)
parents = np.where(parents < 0, -1, parents)
edges, size = graph.edges, graph.num_nodes
normalised = {"operator": "normalized_laplacian", "initial_time": 3.0}


def random_features(num_walks):
    return GraphRandomFeatures(
        edges, num_nodes=size, strength=3.0, walk_length=14, num_walks=num_walks, seed=1
    )


masks = {
    "RandomWalk, exact": RandomWalk(edges, num_nodes=size, exact=True),
    "RandomWalk, 20 walks": RandomWalk(edges, num_nodes=size, num_walks=20, seed=0),
    "Tree": Tree(parents, initial_rate=-0.5),
    "GraphDiffusion": GraphDiffusion(edges, num_nodes=size, **normalised),
    "GraphRandomFeatures, 20 walks": random_features(20),
    "GraphRandomFeatures, 2000 walks": random_features(2000),
}
for mask in masks.values():
    mask.build((1, size, 1, 8))


def matrix(name):
    return keras.ops.convert_to_numpy(masks[name].dense())[0, 0]


for name in list(masks)[-2:]:
    difference = np.abs(matrix(name) - matrix("GraphDiffusion")).mean()
    print(f"{name}: on average {difference:.4f} from GraphDiffusion")

"""
## What attention sees

Three layers with the same weights: one row of the attention matrix is what one node sees. Without a
mask it sees the whole graph. The walks of four nodes let it see its surroundings, in which the
scores still choose. With diffusion, far nodes fade out.
"""

features = 1.5 * np.random.default_rng(1).normal(size=(1, size, 16)).astype("float32")
plain = keras.layers.MultiHeadAttention(1, 16, name="plain")
_, attention = plain(features, features, return_attention_scores=True)
attentions = {"without the graph": attention}
for name in ("RandomWalk, exact", "GraphDiffusion"):
    layer = GraphKernelAttention(1, 16, mask=masks[name])
    layer.build(features.shape)
    for part in ("query_dense", "key_dense", "value_dense", "output_dense"):
        getattr(layer, part).set_weights(getattr(plain, part).get_weights())
    _, attentions[name] = layer(features, return_attention_scores=True)

node = 4
seen = {name: keras.ops.convert_to_numpy(A)[0, 0, node] for name, A in attentions.items()}
own_group = np.arange(size) // (size // 3) == node // (size // 3)
for name, row in seen.items():
    print(f"{name}: node {node} gives {row[own_group].sum():.0%} of its attention to its own group")


def draw_graph(axis, colours, edges=edges, **options):
    """The graph at its places; `colours` are those of the nodes."""
    for first, second in edges:
        axis.plot(*places[[first, second]].T, color="#bbbbbb", linewidth=1, zorder=1)
    axis.set_aspect("equal")
    axis.set_axis_off()
    return axis.scatter(*places.T, c=colours, s=130, edgecolors="black", zorder=2, **options)


try:
    from matplotlib.figure import Figure
except ImportError:
    print("no matplotlib: no pictures")
else:
    output = Path(os.environ.get("GUIDE_OUTPUT") or tempfile.mkdtemp(prefix="guide_"))
    folder = output / "graphs"
    folder.mkdir(parents=True, exist_ok=True)

    def save(figure, name):
        figure.savefig(folder / name, dpi=80)
        print(f"picture: {folder / name}")

    group_colours = np.repeat(["#0072b2", "#e69f00", "#009e73"], size // 3)
    figure = Figure(figsize=(15, 7.2), layout="constrained")
    axes = figure.subplots(2, 4)
    tree_edges = [(number, parent) for number, parent in enumerate(parents) if parent >= 0]
    drawings = {"the graph": edges, "a spanning tree of it": tree_edges}
    for axis, (title, drawn) in zip(axes[:, 0], drawings.items(), strict=True):
        draw_graph(axis, group_colours, drawn)
        axis.set_title(title)
        for number, place in enumerate(places):
            axis.annotate(number, place, ha="center", va="center", fontsize=7, color="white")
    for axis, name in zip(axes[:, 1:].ravel(), masks, strict=True):
        plot_mask(masks[name], axis=axis).set_title(name)
    save(figure, "masks.png")

    figure = Figure(figsize=(13, 3.9), layout="constrained")
    axes = figure.subplots(1, 3)
    highest = max(row.max() for row in seen.values())
    for axis, (name, row) in zip(axes, seen.items(), strict=True):
        points = draw_graph(axis, row, vmin=0.0, vmax=highest, cmap="magma_r")
        axis.scatter(*places[node], s=420, facecolors="none", edgecolors="#0072b2", linewidths=2)
        axis.set_title(name)
    figure.colorbar(points, ax=axes, fraction=0.03, label=f"attention of the ringed node {node}")
    save(figure, "attention.png")

"""
## Edges only, for large graphs

`EdgeAttention` is softmax attention along the edges. It forms a number for each edge and none for
other pairs of nodes, so time and memory grow with the number of edges. An expander graph adds a few
random edges to each node: a few steps along them lead to any other node. A filter that applies A
twice looks two edges far, for the price of two such sums.
"""

NODES = 20_000
random = np.random.default_rng(0)
first, apart = random.integers(NODES, size=5 * NODES), random.integers(1, NODES, size=5 * NODES)
large = Graph(np.stack([first, (first + apart) % NODES], axis=1), num_nodes=NODES)
layer = EdgeAttention(2, 8, graph=large, expander_degree=4, filter="first_order", order=2, seed=0)
outputs = layer(random.normal(size=(1, NODES, 16)).astype("float32"))
print(f"{NODES:,} nodes with {len(large.edges):,} edges: outputs {tuple(outputs.shape)}")

"""
## From graphs to a trained model

Each node has one of three colours. In half of the graphs, each group has a colour of its own; in
the other half, the same colours are shuffled. Counting colours does not distinguish the two: a
model has to see who is joined to whom. `precompute` draws walks once, and `GraphBatches` makes
batches of about equal sizes, padded, with the mask of the nodes. Training and test have the same
sizes here, so that the backend compiles one step for each size.
"""


def coloured_graphs(seed, count, least, most):
    """Graphs of `least` to `most` nodes, with the label 1 where neighbours have one colour."""
    random, graphs = np.random.default_rng(seed), []
    for number in range(count):
        size = int(random.integers(least, most + 1))
        _, graph = grouped_places(random, size)
        colours = np.sort(np.arange(size) % 3)
        colours = colours if number % 2 else random.permutation(colours)
        features = np.eye(3)[random.permutation(3)[colours]]
        graphs.append(Graph(graph.edges, node_features=features, label=number % 2))
    return graphs


def batches_of(graphs, inputs=("nodes", "node_mask", "walks"), sizes=(13, 18), **options):
    walks = precompute(graphs, "walks", num_walks=20, walk_length=3, verbose=False)
    options |= {"inputs": list(inputs), "sizes": sizes}
    return GraphBatches(graphs, 16, node_arrays={"walks": walks}, **options)


def classifier(sees_graph):
    """One layer of attention, a dense layer, the mean over the nodes; any number of nodes."""
    nodes = keras.Input((None, 3), name="nodes")
    node_mask = keras.Input((None,), dtype="bool", name="node_mask")
    walks = keras.Input((None, 20, 3), dtype="int32", name="walks")
    x = keras.layers.Dense(16)(nodes)
    if sees_graph:
        layer = GraphKernelAttention(2, 8, mask=RandomWalk())
        seen = layer(x, query_mask=node_mask, mask_inputs={"walks": walks})
    else:
        seen = keras.layers.MultiHeadAttention(2, 8)(x, x, attention_mask=node_mask[:, None])
    x = keras.layers.Dense(32, activation="gelu")(keras.layers.Concatenate()([x, seen]))
    pooled = GraphMeanPooling()(x, mask=node_mask)
    outputs = keras.layers.Dense(2, activation="softmax", name="shares")(pooled)
    inputs = [nodes, node_mask, walks] if sees_graph else [nodes, node_mask]
    model = keras.Model({tensor.name: tensor for tensor in inputs}, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy()
    model.compile(keras.optimizers.Adam(1e-2), loss, weighted_metrics=["accuracy"])
    return model


train, test = coloured_graphs(1, 288, 9, 18), coloured_graphs(2, 96, 9, 18)
model = classifier(sees_graph=False)
model.fit(batches_of(train, ["nodes", "node_mask"], seed=0), epochs=4, verbose=0)
_, accuracy = model.evaluate(batches_of(test, ["nodes", "node_mask"]), verbose=0)
print(f"without the graph, {accuracy:.3f} of the test graphs are right")

model = classifier(sees_graph=True)
model.fit(batches_of(train, seed=0), epochs=10, verbose=0)
_, accuracy = model.evaluate(batches_of(test), verbose=0)
print(f"with the graph: test accuracy {accuracy:.3f}")

"""
## Serving, for graphs of any size

The SavedModel holds no Python code. TensorFlow and TensorFlow Serving run it, whatever backend has
trained the model. A server batches only requests of equal sizes, so give it a few sizes: a
signature for each, to which the client pads. On TensorFlow and torch, the number of nodes may also
stay open; JAX cannot export walks at an open number. Each graph here has more nodes than any graph
of the training.
"""

import tensorflow as tf

SIZES = (24, 40)
temporary = tempfile.TemporaryDirectory()
shapes = {f"nodes_{n}": {"nodes": (n, 3), "node_mask": (n,), "walks": (n, 20, 3)} for n in SIZES}
version = keras_graphattn.export_saved_model(model, temporary.name, signature=shapes)
served = tf.saved_model.load(str(version))

larger = coloured_graphs(3, 48, 19, 40)
batches = batches_of(larger, sizes=SIZES)
right = differences = 0
for index in range(batches.num_batches):
    inputs, labels, _ = batches[index]
    answer = served.signatures[f"nodes_{inputs['nodes'].shape[1]}"]
    shares = answer(**{name: tf.constant(array) for name, array in inputs.items()})["shares"]
    expected = model.predict_on_batch(inputs)
    differences = max(differences, np.abs(shares.numpy() - expected).max())
    right += (shares.numpy().argmax(axis=1) == labels).sum()
print(f"served - Keras: at most {differences:.1e}")
print(f"graphs of 19 to 40 nodes, served: test accuracy {right / len(larger):.3f}")
temporary.cleanup()
