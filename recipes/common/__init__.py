"""Code that the recipes share. Each part imports from those above it, `recipe` from all.

* `attentions`: all attentions that are compared, with their names, colours, layers and options.
* `storage`: complete files, locks of folders.
* `command`: options, checks before any training, several devices.
* `data`: sequences, batches, data that is generated or downloaded.
* `training`: layers, metrics, learning rates, runs that can be killed and continued.
* `images`: image models in published sizes.
* `output`: table, notes, plot, the best model.
* `recipe`: the outline of every recipe: its command and its declaration.
"""
