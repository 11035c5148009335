"""Source code: defects, clones and faults, with softmax, GFSA and p-Laplacian attention."""
