"""A program for torchrun whose group grows and shrinks: each round counts its members, and waits for its end."""

import os
import threading

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
count = torch.ones(1)
dist.all_reduce(count)
print(f"rank {dist.get_rank()} met {int(count)} members, restart {os.environ['TORCHELASTIC_RESTART_COUNT']}", flush=True)
threading.Event().wait()
