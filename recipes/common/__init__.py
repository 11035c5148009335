"""Pieces that the recipes share: commands, files, batches, optimisers, resumable training."""
