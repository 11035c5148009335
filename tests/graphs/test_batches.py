import keras
import numpy as np
import pytest

from keras_graphattn.graphs import Graph, GraphBatches, precompute
from keras_graphattn.layers import GraphKernelAttention, GraphMeanPooling, MaskedKernelAttention
from keras_graphattn.masks import GraphDiffusion, RandomWalk
from tests.numerics import randomise, to_numpy
from tests.reference_topology import random_edges

SIZES = (5, 3, 8, 4, 13, 2, 7)


def graphs_of(batches, index):
    """The indices into the graphs of the rows of a batch."""
    return [int(place) for place in batches._batches[index][1]]


def made(sizes=SIZES, width=3, **options):
    random = np.random.default_rng(0)
    graphs = []
    for number, size in enumerate(sizes):
        edges = random_edges(size, seed=number)
        weights = random.uniform(0.5, 2.0, len(edges)) if options.get("weighted") else None
        features = random.normal(size=(len(edges), 2)) if options.get("edge_features") else None
        nodes = random.normal(size=(size, width))
        label = {"node": np.arange(size) - 1, "none": None}.get(options.get("labels"), number % 2)
        graphs.append(Graph(edges, weights, nodes, features, label))
    return graphs


def test_every_graph_comes_once_and_whole():
    graphs = made(weighted=True, edge_features=True)
    distances = precompute(graphs, "distances", verbose=False)
    names = [np.full((graph.num_nodes, 1), number) for number, graph in enumerate(graphs)]
    batches = GraphBatches(
        graphs, 2, node_arrays={"names": names}, pair_arrays={"distances": distances}, seed=1
    )
    seen = []
    assert len(batches) == batches.num_batches
    for index in range(len(batches)):
        inputs, labels, weights = batches[index]
        of_batch = inputs["names"][:, 0, 0].tolist()
        assert graphs_of(batches, index) == of_batch
        assert weights.tolist() == [1.0] * len(of_batch)
        for row, number in enumerate(of_batch):
            graph = graphs[number]
            n, e = graph.num_nodes, len(graph.edges)
            one = {name: array[row] for name, array in inputs.items()}
            np.testing.assert_array_equal(one["nodes"][:n], graph.node_features)
            np.testing.assert_array_equal(one["edges"][:e], graph.edges)
            np.testing.assert_allclose(one["edge_weights"][:e], graph.edge_weights, rtol=1e-6)
            np.testing.assert_array_equal(one["edge_features"][:e], graph.edge_features)
            np.testing.assert_array_equal(one["distances"][:n, :n], distances[number])
            assert one["node_mask"].tolist() == [True] * n + [False] * (len(one["nodes"]) - n)
            assert not one["nodes"][n:].any()
            assert not one["edge_features"][e:].any()
            for name, at, fill in (("names", n, -1), ("edges", e, -1), ("edge_weights", e, 1)):
                assert (one[name][at:] == fill).all()
            assert (one["distances"][n:] == -1).all()
            assert (one["distances"][:, n:] == -1).all()
            assert labels[row] == graph.label
            seen.append(number)
    assert sorted(seen) == list(range(len(graphs)))


def order(batches):
    return [graphs_of(batches, index) for index in range(batches.num_batches)]


def test_the_order_is_a_function_of_seed_and_epoch():
    graphs = made((3,) * 12 + (6,) * 12)
    one, other = (GraphBatches(graphs, 4, seed=3) for _ in range(2))
    epochs = []
    for _ in range(3):
        epochs.append(order(one))
        one.on_epoch_end()
    assert epochs[0] != epochs[1] != epochs[2]
    other.start_epoch(2)
    assert order(other) == epochs[2]
    assert order(GraphBatches(graphs, 4, seed=4)) != epochs[0]
    still = GraphBatches(graphs, 4)
    first = order(still)
    still.on_epoch_end()
    # the second batch is of the other bucket
    assert order(still) == first == [list(range(at, at + 4)) for at in (0, 12, 8, 4, 16, 20)]


def test_buckets_hold_alike_graphs_and_differ_in_nodes_and_in_edges():
    graphs = made(tuple(range(2, 42)))
    batches = GraphBatches(graphs, 4)
    assert batches.sizes == [12, 22, 32, 41]
    shapes = {
        (batches[i][0]["nodes"].shape[1], batches[i][0]["edges"].shape[1])
        for i in range(batches.num_batches)
    }
    assert len(shapes) == 4 == len({e for _, e in shapes})
    first, second = (batches[i][0]["nodes"].shape[1] for i in (0, 1))
    assert first != second
    assert GraphBatches(graphs, 4, sizes=[20, 50]).sizes == [20, 50]


def test_numbers_of_edges_to_pad_to_can_be_given():
    graphs = made()
    usual, wide = (GraphBatches(graphs, 7, sizes=[13], **one) for one in ({}, {"edge_sizes": [99]}))
    edges, expected = wide[0][0]["edges"], usual[0][0]["edges"]
    count = expected.shape[1]
    assert edges.shape == (7, 99, 2)
    np.testing.assert_array_equal(edges[:, :count], expected)
    assert (edges[:, count:] == -1).all()


def test_labels_of_nodes_and_none():
    batches = GraphBatches(made(labels="node", sizes=(2, 4)), 2, num_buckets=1, node_labels=True)
    _, labels, weights = batches[0]
    assert labels.tolist() == [[0, 0, 0, 0], [0, 0, 1, 2]]  # -1 is no label
    assert weights.tolist() == [[0, 2, 0, 0], [0, 2, 2, 2]]  # they add up to the number of places
    assert len(GraphBatches(made(labels="none"), 2)[0]) == 1
    numbers = Graph([[0, 1]], label=[-0.5, 0.5], num_nodes=2)  # no classes: all of them count
    _, labels, weights = GraphBatches([numbers], 1, node_labels=True)[0]
    assert (labels.tolist(), weights.tolist()) == ([[-0.5, 0.5]], [[1, 1]])


@pytest.mark.parametrize("wrong", [2**31, -(2**31) - 1, 1e39, "a"])
def test_numbers_that_a_batch_does_not_hold_are_refused(wrong):
    """As int32 and float32 they would be other numbers, in silence."""
    pair = made((2,))
    with pytest.raises(ValueError, match=r"'far'.* of graph 0|'far' .* graph 0"):
        GraphBatches(pair, 1, node_arrays={"far": [np.array([0, wrong])]})
    if not isinstance(wrong, str):
        with pytest.raises(ValueError, match="'label'"):
            GraphBatches([Graph([[0, 1]], label=wrong)], 1)
    GraphBatches(pair, 1, node_arrays={"far": [np.array([-(2**31), 2**31 - 1])]})


@pytest.mark.parametrize("other", [[0.5, 1.5], [True, False]])
def test_numbers_of_two_kinds_are_not_made_one_in_silence(other):
    """An array has the dtype of its first graph: 0.5 would become 0."""
    pair = [Graph([[0, 1]], label=[1, 0]), Graph([[0, 1]], label=other)]
    for options in ({"node_labels": True}, {"node_arrays": {"far": [[1, 2], other]}}):
        graphs = pair if "node_labels" in options else [Graph([[0, 1]])] * 2
        with pytest.raises(ValueError, match=r"int64 for graph 0 and .* for graph 1"):
            GraphBatches(graphs, 2, **options)
    numbers = [Graph([[0, 1]], label=1), Graph([[0, 1]], label=0.5)]  # labels of graphs are stacked
    assert GraphBatches(numbers, 2)[0][1].tolist() == [1.0, 0.5]


@pytest.mark.parametrize("wrong", [1e39, 1e-39, 1e-310])
def test_weights_that_a_batch_does_not_hold_are_refused(wrong):
    graphs = [*made((2,)), Graph([[0, 1], [1, 2]], [1.0, wrong], np.ones((3, 2)), label=0)]
    graphs = [Graph(g.edges, g.edge_weights, np.ones((g.num_nodes, 2)), label=0) for g in graphs]
    with pytest.raises(ValueError, match=r"edge weights as float32.*in graph 1, and 1 such"):
        GraphBatches(graphs, 1)
    GraphBatches(graphs, 1, inputs=["nodes"])  # no weights in it
    equal = GraphBatches(made((2,)), 1, inputs=["edge_weights"])  # asked for, though all are 1
    assert equal[0][0]["edge_weights"].tolist() == [[1.0]]


def walk_layer():
    return GraphKernelAttention(2, 4, mask=RandomWalk()), ("walks",)


def diffusion_layer():
    mask = GraphDiffusion(edge_weights=True, operator="normalized_laplacian")
    return MaskedKernelAttention(2, 4, mask=mask), ("edges", "edge_weights")


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("make", [walk_layer, diffusion_layer])
def test_layers_take_a_batch_as_it_is_and_answer_as_for_each_graph_by_itself(make):
    graphs = made(weighted=True)
    walks = precompute(graphs, "walks", num_walks=3, walk_length=3, verbose=False)
    layer, names = make()

    def answer(batches, index):
        inputs = batches[index][0]
        mask = inputs["node_mask"]
        mask_inputs = {name: inputs[name] for name in names}
        outputs = layer(inputs["nodes"], query_mask=mask, value_mask=mask, mask_inputs=mask_inputs)
        return to_numpy(outputs)

    together = GraphBatches(graphs, 3, num_buckets=2, node_arrays={"walks": walks})
    answer(together, 0)
    randomise(layer, scale=0.5)
    for index in range(together.num_batches):
        outputs = answer(together, index)
        for row, number in enumerate(graphs_of(together, index)):
            own = {"walks": [walks[number]]}
            alone = answer(GraphBatches([graphs[number]], 1, node_arrays=own), 0)
            size = graphs[number].num_nodes
            np.testing.assert_allclose(outputs[row, :size], alone[0], atol=2e-5)


def small_model(node_labels):
    """Two classes for each node, or for each graph; open numbers of nodes."""
    nodes = keras.Input((None, 3), name="nodes")
    mask = keras.Input((None,), dtype="bool", name="node_mask")
    x = nodes if node_labels else GraphMeanPooling()(nodes, mask=mask)
    shares = keras.layers.Dense(2, activation="softmax")(x)
    return keras.Model({"nodes": nodes, "node_mask": mask}, shares)


def losses_of_labels(model, batches, index):
    """The cross-entropy of each label of a batch, by hand."""
    inputs, labels, weights = batches[index]
    shares = to_numpy(model(inputs))
    return -np.log(np.take_along_axis(shares, labels[..., None], axis=-1)[..., 0])[weights > 0]


@pytest.mark.parametrize("labels", ["graph", "node"])
@pytest.mark.slow_on("jax")
def test_the_loss_of_a_batch_is_the_mean_over_its_labels_and_so_is_that_of_all(labels):
    """Under `compile` as it comes; padding and graphs that are not there have no share."""
    keras.utils.set_random_seed(0)
    graphs, node_labels = made((*SIZES, 6), labels=labels), labels == "node"
    graphs = [Graph(g.edges, None, g.node_features, label=np.minimum(g.label, 1)) for g in graphs]
    batches = GraphBatches(
        graphs, 3, num_buckets=2, inputs=["nodes", "node_mask"], node_labels=node_labels, seed=0
    )
    trained = small_model(node_labels)
    trained.compile("sgd", "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
    each = [losses_of_labels(trained, batches, i) for i in range(batches.num_batches)]
    for index, losses in enumerate(each):
        loss_and_accuracy = trained.test_on_batch(*batches[index])
        np.testing.assert_allclose(loss_and_accuracy[0], losses.mean(), rtol=1e-5)
    whole = GraphBatches(
        graphs, 8, num_buckets=1, inputs=["nodes", "node_mask"], node_labels=node_labels
    )
    several, at_once = (trained.evaluate(one, verbose=0) for one in (batches, whole))
    np.testing.assert_allclose(at_once[0], np.concatenate(each).mean(), rtol=1e-5)
    if not node_labels:
        np.testing.assert_allclose(several, at_once, rtol=1e-5)
        trained.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
        np.testing.assert_allclose(trained.evaluate(batches, verbose=0), at_once, rtol=1e-5)
    trained.layers[-1].kernel.assign(0.0 * trained.layers[-1].kernel)  # a constant classifier
    assert trained.evaluate(batches, verbose=0)[0] == pytest.approx(np.log(2.0))
    weights = [to_numpy(w) for w in trained.trainable_variables]
    trained.train_on_batch(*batches[0])
    steps = [w - to_numpy(v) for w, v in zip(weights, trained.trainable_variables, strict=True)]
    _, of_labels, weights_of_labels = batches[0]
    shares = np.array([(of_labels[weights_of_labels > 0] == k).mean() for k in (0, 1)])
    np.testing.assert_allclose(steps[-1], 0.01 * (0.5 - shares), atol=1e-6)  # of the bias


def test_only_one_batch_is_smaller():
    batches = GraphBatches(made(tuple(range(2, 24))), 4, num_buckets=3, seed=1)
    for epoch in range(3):
        batches.start_epoch(epoch)
        places = order(batches)
        assert sorted(np.concatenate(places)) == list(range(22))
        assert sorted(map(len, places)) == [2, 4, 4, 4, 4, 4]
    few = GraphBatches(made((2, 3)), 4, sizes=[5, 50])
    assert few.num_batches == 1
    assert few[0][0]["nodes"].shape == (2, 5, 3)  # no larger than these graphs need


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"graphs": []}, "must be a list"),
        ({"graphs": [[[0, 1]]]}, "must be a list"),
        ({"graphs": [*made((2,)), *made((2,), 4)]}, "same number of node features"),
        ({"graphs": [*made((2,)), *made((2,), labels="none")]}, "in graph 1"),
        ({"batch_size": 0}, "batch_size"),
        ({"seed": -1}, "seed"),
        ({"node_labels": True}, r"must have the shape \(n,\)"),
        ({"sizes": [5]}, "at least 13"),
        ({"sizes": [20, 13]}, "ascending"),
        ({"sizes": 20}, "ascending"),
        ({"edge_sizes": 99}, r"a number for each size"),
        ({"edge_sizes": [99]}, r"a number for each size"),
        ({"sizes": [13], "edge_sizes": [1]}, r"at least \[\d+\]"),
        ({"sizes": [5, 13], "edge_sizes": [99]}, r"at least \[\d+, \d+\]"),
        ({"sizes": [13], "edge_sizes": ["many"]}, "edge_sizes"),
        ({"num_buckets": 0}, "num_buckets"),
        ({"inputs": ["walks"]}, r"`inputs` must be names of \['nodes'"),
        ({"node_arrays": {"edges": []}}, "another name"),
        ({"node_arrays": {"x": [np.zeros((2, 1))]}}, r"'x' with 1 arrays"),
        ({"pair_arrays": {"x": [np.zeros(n) for n in SIZES]}}, r"\(n, n, ...\)"),
        (
            {
                "node_arrays": {"x": [np.zeros(n) for n in SIZES]},
                "pair_arrays": {"x": [np.zeros((n, n)) for n in SIZES]},
            },
            "different names",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        GraphBatches(**{"graphs": made(), "batch_size": 2, **options})
