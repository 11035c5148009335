"""What a finished comparison shows: table, notes under it, plot, the best model."""
