"""
Title: Several processes on torch
Author: The keras_graphattn authors
Date created: 2026/11/26
Last modified: 2026/11/26
Description: DistributedDataParallel in a loop of your own, tried out with two processes on a CPU.
Accelerator: None
Environment: KERAS_BACKEND=torch
"""

"""
On torch, `fit` trains on one device. But a Keras model is a `torch.nn.Module` there. So PyTorch's
own `DistributedDataParallel` trains it: each process has all weights and a part of each batch, and
the gradients are averaged over all processes. The layers of this package need nothing else.

This guide starts two processes on one CPU. They exchange numbers by gloo, as PyTorch does without
GPUs.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")  # or "jax", "tensorflow"

import inspect
import subprocess
import sys
import tempfile
from pathlib import Path

"""
## The program of each process

`torchrun` tells each process its number and how many there are. All processes start with the same
weights, because they have the same seed; `DistributedDataParallel` also copies those of process 0.
Each process takes every second row of the shuffled data.

Before the training, the program checks one step: the averaged gradient of two half batches must be
the gradient of the whole batch.
"""


def train():
    import keras
    import numpy as np
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    from keras_graphattn.layers import GraphFilterAttention

    def sequences(count, random):
        """Sequences of symbols; the class is which of the first two comes more often."""
        labels = random.integers(0, 2, count)
        chances = np.full((2, 8), 0.1)
        chances[0, 0] = chances[1, 1] = 0.3
        tokens = np.stack([random.choice(8, 64, p=chances[label]) for label in labels])
        return torch.tensor(tokens), torch.tensor(labels)

    def build():
        tokens = keras.Input((64,), dtype="int64")
        x = keras.layers.Embedding(8, 32)(tokens)
        x += GraphFilterAttention(num_heads=2, key_dim=16, order=3)(x)
        x = keras.layers.Dense(64, activation="gelu")(x)
        x = keras.layers.GlobalAveragePooling1D()(x)
        return keras.Model(tokens, keras.layers.Dense(2)(x))

    def gradients(module, rows):
        module.zero_grad()
        loss_of(module(x_train[rows]), y_train[rows]).backward()
        return [w.grad.clone() for w in model.parameters() if w.requires_grad]

    distributed.init_process_group("gloo")  # "nccl" for GPUs
    rank, count = distributed.get_rank(), distributed.get_world_size()
    keras.utils.set_random_seed(0)
    random = np.random.default_rng(0)
    (x_train, y_train), (x_test, y_test) = sequences(512, random), sequences(256, random)
    loss_of = torch.nn.CrossEntropyLoss()
    model = build()
    parallel = DistributedDataParallel(model)

    shared = gradients(parallel, slice(rank, 32, count))
    whole = gradients(model, slice(0, 32))
    difference = max(float((a - b).abs().max()) for a, b in zip(shared, whole, strict=True))
    print(f"process {rank} of {count}: gradients differ by at most {difference:.0e}", flush=True)
    assert difference < 1e-6

    data = TensorDataset(x_train, y_train)
    sampler = DistributedSampler(data)
    optimizer = torch.optim.Adam(parallel.parameters(), 5e-3)
    for epoch in range(4):
        sampler.set_epoch(epoch)  # another order in each epoch
        for tokens, labels in DataLoader(data, batch_size=16, sampler=sampler):
            optimizer.zero_grad()
            loss_of(parallel(tokens), labels).backward()
            optimizer.step()

    if rank == 0:  # one process writes and prints
        with torch.no_grad():
            classes = model(x_test).argmax(-1)
        print(f"two processes: test accuracy {float((classes == y_test).float().mean()):.3f}")
        model.save_weights("trained.weights.h5")
    distributed.destroy_process_group()


"""
## Start it

A program of your own is a file. Here the function above becomes one. If a process ends early,
`torchrun` ends the others. For eight GPUs of each of two hosts, each host runs

    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d \\
        --rdzv-endpoint 10.0.0.1:1234 program.py

and the program begins with `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))`. This has not
been tried out.
"""

with tempfile.TemporaryDirectory() as folder:
    program = Path(folder, "program.py")
    program.write_text(f"{inspect.getsource(train)}\n\ntrain()\n")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    result = subprocess.run(
        [*command, "--nproc-per-node", "2", program],
        env={**os.environ, "KERAS_BACKEND": "torch", "OMP_NUM_THREADS": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    print("\n".join(sorted(result.stdout.splitlines())))
    print(f"written: {', '.join(sorted(path.name for path in Path(folder).glob('*.h5')))}")

"""
## What to know

* The coefficients of a filter are parameters like all others: their gradients are averaged too. In
  `model.trainable_variables` their names end in `_coefficient`.
* Keras' masks, losses and metrics can be used in such a loop. `fit` and its callbacks cannot.
* `DistributedDataParallel` shares out examples. To share out the tokens of one sequence, or the
  weights, use JAX: see [Half precision and several devices](distribution.py).
"""
