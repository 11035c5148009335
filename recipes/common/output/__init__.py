"""What a recipe writes: files that are whole or not there, kept runs, table, notes and plot."""
