"""GLUE with pretrained or small BERT-like models: softmax, GFSA and p-Laplacian attention."""
