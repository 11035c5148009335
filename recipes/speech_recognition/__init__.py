"""Speech recognition by Transformers and Branchformers with softmax or a graph filter."""
