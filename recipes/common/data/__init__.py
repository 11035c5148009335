"""Data: padded and ragged sequences, batches of constant shapes, generated and downloaded data."""
