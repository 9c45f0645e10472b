"""A program for torchrun: trains a model with DDP over gloo, and prints whether all replicas are equal.

usage: ddp.py [INIT_METHOD] [--fail_once]

With --fail_once rank 1 fails before the job's first restart.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel


def train():
    """The parameters after five steps."""
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@record
def main():
    arguments = [each for each in sys.argv[1:] if not each.startswith("--")]
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    dist.init_process_group("gloo", init_method=arguments[0] if arguments else None,
                            rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    mine = train()
    if "--fail_once" in sys.argv and restarts == 0 and rank == 1:
        raise ValueError("planted failure")
    everyone = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(everyone, mine)
    equal = all(torch.equal(mine, other) for other in everyone)
    print(f"rank {rank} of {size}, restart {restarts}: replicas are {'equal' if equal else 'different'}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    # Everything is done. PyTorch 2.11 sometimes aborts ("terminate called without an active exception") while the
    # interpreter ends, under torchrun too.
    os._exit(0)


if __name__ == "__main__":
    main()
