"""Training: layers and metrics, learning rates, runs that go on after they were killed."""
