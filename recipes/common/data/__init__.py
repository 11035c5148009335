"""Data: padded and ragged sequences, batches of constant shapes, what is made or downloaded."""
