#!/usr/bin/python3
"""Trains a classifier on a worker of a Gradwire job, from Python. The worker runs model_worker.cc.

usage: call_model.py HOST:PORT of the job's gateway [TOKEN]

The lines `# %%` divide the script into cells, as notebooks and many editors understand them.
"""

# %% Connect to the gateway of the job.
import inspect
import sys

import numpy as np

from gradwire_client import Client, InvalidArgument, ProgressLine

client = Client(sys.argv[1], token=sys.argv[2] if len(sys.argv) > 2 else None, timeout=60)
print("workers:", ", ".join(worker.name for worker in client.workers() if not worker.gateway))

# %% Call a function. Its signature comes from the worker.
scale = client.functions["model::scale"]
print(f"scale{inspect.signature(scale)}")
print("scaled:", scale(np.arange(4, dtype=np.float32), 0.5))

# %% Call an operator of libtorch.
print("added:", client.op("aten::add", np.ones(3), np.arange(3.0), alpha=10))

# %% Read a stream: each value is here as soon as the worker has made it.
for power in client.stream("model::powers", np.array([2.0, 3.0]), 3):
    print("power:", power)

# %% Send a large array. A line in the terminal shows how far it is.
large = np.ones((2048, 1024), np.float32)
print("large:", client.call("model::scale", large, 3.0, progress=ProgressLine("sending")).sum() / large.size)

# %% Two interleaved rings: points and the number of their ring.
random = np.random.default_rng(1)
labels = random.integers(0, 2, 400)
angles = random.uniform(0, 2 * np.pi, 400)
radii = 1 + labels + random.normal(0, 0.1, 400)
points = np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1).astype(np.float32)

# %% Create a model on a worker, train it there, and use it. It lives until the session ends.
with client.session() as session:
    classifier = session.create("model::Classifier", 2, 32, 2)
    for step in range(300):
        loss = classifier.fit(points, labels, 0.5)
    print(f"loss: {loss:.3f}")
    found = classifier.scores(points).argmax(axis=1)
    print(f"accuracy: {(found == labels).mean():.3f}")

    # An argument of a wrong type is refused before the worker sees it.
    try:
        classifier.fit(points, "labels", 0.5)
    except InvalidArgument as error:
        print(f"refused: argument {error.argument} wants {error.wanted}")

# %%
client.close()
