"""Graphormer's virtual node.

Source: Ying et al., "Do Transformers Really Perform Bad for Graph Representation?",
arXiv 2106.05234 (NeurIPS 2021), Section 3.
"""

import keras

from recipes.common.training.layers import FirstToken


@keras.saving.register_keras_serializable(package="keras_graphattn_recipes")
class VirtualNode(FirstToken):
    """Puts one learned vector before the nodes: (B, T, d) -> (B, 1 + T, d)."""

    start = keras.initializers.RandomNormal
