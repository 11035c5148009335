"""Causal language models: softmax, GFSA, p-LaT and masked kernel attention; perplexity."""
