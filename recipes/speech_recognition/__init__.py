"""Speech recognition: Transformer and Branchformer with graph filters, from audio to words."""
