"""What the recipes share.

* `attentions`: all attentions that are compared, with their names, looks, layers and options.
* `recipe`: the outline of every recipe's command, and what a recipe declares.
* `command`: options, checks before any training, Ctrl-C, several devices.
* `data`: sequences, batches, data that is made or downloaded.
* `training`: layers, metrics, learning rates, runs that can be killed and go on.
* `output`: files, kept runs, table, notes, plot.
"""
