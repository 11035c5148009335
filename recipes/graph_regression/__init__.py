"""A number for each molecule: Graphormer with and without GFSA, GCN, GAT, GKAT and others."""
