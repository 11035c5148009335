"""Time-series classification on the UEA archive with softmax, GFSA and AGF attention."""
