"""Training: layers and metrics, learning rates, runs that continue after they were killed."""
