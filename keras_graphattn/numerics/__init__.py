"""Accurate numbers: float32 and float64 inside, NaN that spreads, and custom gradients."""
