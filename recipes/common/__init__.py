"""What the recipes share. Each part imports from those above it, `recipe` from all.

* `attentions`: all attentions that are compared, with their names, looks, layers and options.
* `storage`: files that are whole or not there, locks of folders.
* `command`: options, checks before any training, several devices.
* `data`: sequences, batches, data that is made or downloaded.
* `training`: layers, metrics, learning rates, runs that can be killed and go on.
* `images`: models of images, in the sizes that papers published.
* `output`: table, notes, plot, the best model.
* `recipe`: the outline of every recipe's command, and what a recipe declares.
"""
