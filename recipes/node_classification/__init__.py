"""Classes of the nodes of one graph: citation networks, the karate club."""
