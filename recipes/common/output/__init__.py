"""The output of a finished comparison: table, notes under it, plot, the best model."""
