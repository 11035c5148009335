"""The names of what else makes A than a softmax of scaled scores; `Logits` is that of operators."""

from keras_graphattn.operators.softmax import Logits as Logits

SOFT_CAP = "soft cap of the scores"
BIAS = "bias of the scores"
SINK = "sink"
DROPOUT = "dropout of the attention matrix"
