"""The command line: options and their types, checks before any training, Ctrl-C, devices."""
