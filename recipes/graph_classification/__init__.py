"""Classes of graphs, on TU data with the published folds: softmax, GCN, GAT, GKAT and others."""
