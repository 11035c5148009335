"""Motifs in random graphs, and long cycles in trees: softmax, GCN, GAT, GKAT and others."""
