#!/usr/bin/env python3
"""oracle.py [--check] [--only=CASE,...] [FILE]: records what PyTorch's own data parallel training computes.

Each case trains a small network on several ranks (processes with the Gloo backend) with one feature of
torch.nn.parallel.DistributedDataParallel, and records the loss of each rank in each step. The file has a line

    CASE RANK LOSS LOSS ...

for each rank of each case. The test //data_parallel/testing:oracle_test trains the same networks in C++ and compares.
Weights and data follow from formulas (`fill` and `batch` below, and data_parallel/testing/oracle_case.h), so no random
numbers have to agree. With --check, it compares with the file instead of writing it.

It needs PyTorch 2.11 (tools/setup --pytorch), for example
    PYTHONPATH=~/.cache/gradwire/pytorch-2.11.0 python3 data_parallel/testing/oracle/oracle.py
"""
import argparse
import os
import socket
import sys
import unittest.mock
import warnings

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks import (ddp_zero_hook, default_hooks, post_localSGD_hook,
                                                         powerSGD_hook, quantization_hooks)
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging import averagers, hierarchical_model_averager
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

FILE = os.path.join(os.path.dirname(os.path.realpath(__file__)), "losses.txt")
STEPS = 50
ROWS = 6
TOLERANCE = 1e-6


def formula(shape, seed, modulus, scale, dtype):
    """Numbers (7 i + 13 seed) mod modulus, centred and divided by scale."""
    count = 1
    for size in shape:
        count *= size
    numbers = (torch.arange(count) * 7 + seed * 13) % modulus - modulus // 2
    return (numbers.to(torch.float64) / scale).to(dtype).reshape(shape)


def fill(module):
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            parameter.copy_(formula(parameter.shape, i + 1, 17, 40.0, parameter.dtype))


def batch(rank, step, dtype=torch.float64, rows=ROWS):
    """Inputs [rows, 10] and targets [rows, 4]."""
    return (formula((rows, 10), 3 * step + 11 * rank, 19, 10.0, dtype),
            formula((rows, 4), 7 * step + 5 * rank, 23, 10.0, dtype))


class Net(torch.nn.Module):
    """Three layers; `branch` is used in odd steps of odd ranks only, if at all."""

    def __init__(self, dtype=torch.float64, norm=False, branch=False):
        super().__init__()
        self.first = torch.nn.Linear(10, 16)
        self.second = torch.nn.Linear(16, 8)
        self.third = torch.nn.Linear(8, 4)
        self.norm = torch.nn.BatchNorm1d(16) if norm else None
        self.branch = torch.nn.Linear(16, 8) if branch else None
        self.to(dtype)
        fill(self)
        if norm:
            with torch.no_grad():
                self.norm.weight.fill_(1)
                self.norm.bias.fill_(0)

    def forward(self, x, use_branch=False):
        x = self.first(x).relu()
        if self.norm is not None:
            x = self.norm(x)
        y = self.second(x)
        if use_branch:
            y = y + self.branch(x)
        return self.third(y.relu())


class Looped(torch.nn.Module):
    """Uses one layer twice, each time inside a checkpoint."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(10, 8)
        self.loop = torch.nn.Linear(8, 8)
        self.last = torch.nn.Linear(8, 4)
        self.to(torch.float64)
        fill(self)

    def forward(self, x):
        x = self.first(x)
        for _ in range(2):
            x = checkpoint(lambda y: self.loop(y).relu(), x, use_reentrant=True)
        return self.last(x)


class Words(torch.nn.Module):
    """An embedding with sparse gradients and a layer."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(12, 10, sparse=True)
        self.last = torch.nn.Linear(10, 4)
        self.to(torch.float64)
        fill(self)

    def forward(self, words):
        return self.last(self.table(words))


def sgd(module):
    return torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)


def step_of(model, optimizer, rank, step, dtype=torch.float64, **arguments):
    x, y = batch(rank, step, dtype)
    if optimizer is not None:
        optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x, **arguments), y)
    loss.backward()
    if optimizer is not None:
        optimizer.step()
    return loss.item()


def train(rank, model, optimizer, dtype=torch.float64, steps=STEPS, arguments=lambda step: {}):
    return [step_of(model, optimizer, rank, step, dtype, **arguments(step)) for step in range(steps)]


def with_hook(hook, state=None, dtype=torch.float64):
    def run(rank):
        net = Net(dtype)
        model = DistributedDataParallel(net)
        model.register_comm_hook(state() if state is not None else None, hook)
        return train(rank, model, sgd(net), dtype)
    return run


def plain(rank):
    net = Net()
    return train(rank, DistributedDataParallel(net), sgd(net))


def power_sgd(**options):
    return with_hook(powerSGD_hook.powerSGD_hook, lambda: powerSGD_hook.PowerSGDState(None, **options))


def quantized(channel):
    """torch's quantization hooks expect the futures of NCCL, so this hook calls their parts with Gloo."""
    def run(rank):
        net = Net(torch.float32)
        # Channels depend on the order of the gradients in the bucket, which is not the same in PyTorch's first pass.
        order = {id(parameter): -i for i, parameter in enumerate(net.parameters())}

        def hook(state, bucket):
            ranks = dist.get_world_size()
            gradients = [gradient for _, gradient in sorted(zip(bucket.parameters(), bucket.gradients()),
                                                            key=lambda pair: order[id(pair[0])])]
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
            if channel:
                rows = torch.nn.functional.pad(flat, (0, 64 - len(flat) % 64)).view(-1, 64)
                observer = torch.ao.quantization.PerChannelMinMaxObserver()
                coded, decoded = (quantization_hooks._quantize_per_channel_backend,
                                  quantization_hooks._dequantize_per_channel_backend)
            else:
                rows = flat
                observer = torch.ao.quantization.MinMaxObserver()
                coded, decoded = (quantization_hooks._quantize_per_tensor_backend,
                                  quantization_hooks._dequantize_per_tensor_backend)
            observer(rows)
            parameters = torch.stack([each.to(torch.float32) for each in observer.calculate_qparams()])
            codes = coded(rows, *parameters)
            all_parameters = [torch.empty_like(parameters) for _ in range(ranks)]
            all_codes = [torch.empty_like(codes) for _ in range(ranks)]
            dist.all_gather(all_parameters, parameters)
            dist.all_gather(all_codes, codes)
            total = torch.zeros_like(rows)
            for code, each in zip(all_codes, all_parameters):
                total += decoded(code, *each)
            averages = (total / ranks).view(-1)[:len(flat)].split([gradient.numel() for gradient in gradients])
            for gradient, average in zip(gradients, averages):
                gradient.copy_(average.view_as(gradient))
            future = torch.futures.Future()
            future.set_result(bucket.buffer())
            return future

        model = DistributedDataParallel(net)
        model.register_comm_hook(None, hook)
        return train(rank, model, sgd(net), torch.float32)
    return run


def post_local_sgd(rank):
    net = Net()
    model = DistributedDataParallel(net)
    model.register_comm_hook(post_localSGD_hook.PostLocalSGDState(None, None, 10, post_local_gradient_allreduce=False),
                             post_localSGD_hook.post_localSGD_hook)
    optimizer = PostLocalSGDOptimizer(sgd(net), averagers.PeriodicModelAverager(period=4, warmup_steps=10))
    return train(rank, model, optimizer)


def hierarchical(rank):
    net = Net()
    averager = hierarchical_model_averager.HierarchicalModelAverager({2: 2, 4: 4}, warmup_steps=3)
    return train(rank, net, PostLocalSGDOptimizer(sgd(net), averager))


def optimizer_in_backward(rank):
    net = Net()
    model = DistributedDataParallel(net)
    model._register_fused_optim(torch.optim.SGD, lr=0.05, momentum=0.9)
    losses = []
    for step in range(STEPS):
        net.zero_grad()
        losses.append(step_of(model, None, rank, step))
    return losses


def join(divide_by_initial_world_size):
    def run(rank):
        net = Net(norm=True)
        model = DistributedDataParallel(net)
        optimizer = sgd(net)
        losses = []
        with model.join(divide_by_initial_world_size=divide_by_initial_world_size):
            losses = train(rank, model, optimizer, steps=20 + 10 * rank)
        # All ranks have one model now.
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        return losses + train(rank, model, optimizer, steps=20)
    return run


def join_zero(rank):
    net = Net()
    model = DistributedDataParallel(net)
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, lr=0.05, momentum=0.9)
    with Join([model, optimizer]):
        return train(rank, model, optimizer, steps=STEPS)


def static_graph(rank):
    net = Looped()
    model = DistributedDataParallel(net, static_graph=True)
    optimizer = sgd(net)
    losses = []
    for step in range(STEPS):
        x, y = batch(rank, step)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x.requires_grad_()), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def delayed(rank):
    """PyTorch does not wait for the delayed reduction with Gloo, but the gradients are those of a plain replica."""
    net = Net(torch.float32)
    return train(rank, DistributedDataParallel(net), sgd(net), torch.float32)


def ignored(rank):
    net = Net()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ["second.weight", "second.bias"])
    return train(rank, DistributedDataParallel(net), sgd(net))


def sparse(rank):
    net = Words()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    losses = []
    for step in range(STEPS):
        words = (torch.arange(ROWS) * 5 + step * (rank + 2)) % 12
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(words), batch(rank, step)[1])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def unused(rank):
    net = Net(branch=True)
    model = DistributedDataParallel(net, find_unused_parameters=True)
    return train(rank, model, sgd(net), arguments=lambda step: {"use_branch": step % 2 == 1 and rank == 1})


def buffers(rank):
    net = Net(norm=True)
    model = DistributedDataParallel(net)
    optimizer = sgd(net)
    losses = []
    for step in range(STEPS):
        losses.append(step_of(model, optimizer, rank, step))
        if step % 5 == 4:
            # The running statistics show whose buffers were broadcast. A replica of PyTorch would broadcast them in
            # evaluation too, so this calls the module.
            model.eval()
            with torch.no_grad():
                losses[-1] += net(batch(0, step)[0]).sum().item()
            model.train()
    return losses


def accumulated(rank):
    net = Net()
    model = DistributedDataParallel(net)
    optimizer = sgd(net)
    losses = []
    for step in range(0, STEPS, 2):
        optimizer.zero_grad()
        for part in range(2):
            x, y = batch(rank, step + part)
            with model.no_sync() if part == 0 else torch.enable_grad():
                loss = torch.nn.functional.mse_loss(model(x), y)
                loss.backward()
            losses.append(loss.item())
        optimizer.step()
    return losses


def zero(rank):
    net = Net()
    parameters = list(net.parameters())
    optimizer = ZeroRedundancyOptimizer(
        [{"params": parameters[:4]}, {"params": parameters[4:], "lr": 0.001}], torch.optim.Adam, lr=0.01)
    return train(rank, DistributedDataParallel(net), optimizer)


def zero_in_backward(interleaved):
    """PyTorch steps from the third pass on, because it arranges its buckets before that.

    It refuses Gloo, whose operations may hang if two ranks start them in different orders. This network has one bucket,
    so there is only one order."""
    def run(rank):
        net = Net()
        model = DistributedDataParallel(net)
        optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=0.05,
                                            momentum=0.9)
        wrap = ddp_zero_hook.hook_with_zero_step_interleaved if interleaved else ddp_zero_hook.hook_with_zero_step
        with unittest.mock.patch.object(ddp_zero_hook.dist, "get_backend", return_value="nccl"):
            hook = wrap(default_hooks.allreduce_hook, model, optimizer)
        model.register_comm_hook(None, hook)
        losses = []
        for step in range(STEPS):
            x, y = batch(rank, step)
            model.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            losses.append(loss.item())
        return losses
    return run


def mixed_precision(rank):
    """DistributedDataParallel's mixed precision needs an accelerator, so this is the same computation by hand."""
    net = Net(torch.float32)
    low = Net(torch.bfloat16)
    optimizer = sgd(net)
    losses = []
    for step in range(STEPS):
        with torch.no_grad():
            for full, copy in zip(net.parameters(), low.parameters()):
                copy.copy_(full)
                copy.grad = None
        x, y = batch(rank, step, torch.float32)
        loss = torch.nn.functional.mse_loss(low(x.to(torch.bfloat16)).to(torch.float32), y)
        loss.backward()
        for full, copy in zip(net.parameters(), low.parameters()):
            full.grad = copy.grad.to(torch.float32)
            dist.all_reduce(full.grad)
            full.grad /= dist.get_world_size()
        optimizer.step()
        losses.append(loss.item())
    return losses


def sync_batch_norm(rank):
    """torch.nn.SyncBatchNorm needs a GPU, so one process trains on the batches of both ranks, of different sizes."""
    net = Net(norm=True)
    optimizer = sgd(net)
    losses = []
    for step in range(STEPS):
        parts = [batch(r, step, rows=ROWS + 3 * r) for r in range(2)]
        optimizer.zero_grad()
        outputs = net(torch.cat([x for x, _ in parts])).split([ROWS, ROWS + 3])
        each = [torch.nn.functional.mse_loss(output, y) for output, (_, y) in zip(outputs, parts)]
        (sum(each) / 2).backward()
        optimizer.step()
        losses.append(each[rank].item())
    return losses


# The name of each case, its number of ranks and its function.
CASES = {
    "plain": (2, plain),
    "allreduce_hook": (2, with_hook(default_hooks.allreduce_hook)),
    "fp16": (2, with_hook(default_hooks.fp16_compress_hook, dtype=torch.float32)),
    "bf16": (2, with_hook(default_hooks.bf16_compress_hook, dtype=torch.float32)),
    "noop": (2, with_hook(noop_hook)),
    "power_sgd": (2, power_sgd(matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=0.5)),
    "power_sgd_qr": (2, power_sgd(matrix_approximation_rank=3, start_powerSGD_iter=5, warm_start=False)),
    "power_sgd_fp16": (2, with_hook(
        default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook),
        lambda: powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2,
                                            min_compression_rate=0.5), torch.float32)),
    "quantized_tensor": (2, quantized(channel=False)),
    "quantized_channel": (2, quantized(channel=True)),
    "post_local_sgd": (2, post_local_sgd),
    "hierarchical": (4, hierarchical),
    "optimizer_in_backward": (2, optimizer_in_backward),
    "join": (2, join(True)),
    "join_active": (2, join(False)),
    "join_zero": (2, join_zero),
    "static_graph": (2, static_graph),
    "delayed": (2, delayed),
    "ignored": (2, ignored),
    "sparse": (2, sparse),
    "unused": (2, unused),
    "buffers": (2, buffers),
    "accumulated": (3, accumulated),
    "zero": (3, zero),
    "zero_step": (2, zero_in_backward(interleaved=False)),
    "zero_step_interleaved": (2, zero_in_backward(interleaved=True)),
    "mixed_precision": (2, mixed_precision),
    "sync_batch_norm": (2, sync_batch_norm),
}


def work(rank, port, size, names, results):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    for name in names:
        torch.manual_seed(rank)
        results.put((name, rank, CASES[name][1](rank)))
    dist.barrier()
    dist.destroy_process_group()


def record(names):
    """The losses of these cases: {(case, rank): [loss, ...]}."""
    context = mp.get_context("spawn")
    found = {}
    for size in sorted({CASES[name][0] for name in names}):
        chosen = [name for name in names if CASES[name][0] == size]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        results = context.SimpleQueue()
        processes = mp.spawn(work, (port, size, chosen, results), nprocs=size, join=False)
        for _ in range(size * len(chosen)):
            while results.empty():
                processes.join(timeout=0.1)
            name, rank, losses = results.get()
            found[name, rank] = losses
        while not processes.join():
            pass
    return found


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--check", action="store_true")
    options.add_argument("--only", default="")
    options.add_argument("file", nargs="?", default=FILE)
    options = options.parse_args()
    names = [name for name in CASES if not options.only or name in options.only.split(",")]
    found = record(names)
    if options.check:
        recorded = {}
        with open(options.file, encoding="utf-8") as lines:
            for line in lines:
                name, rank, *losses = line.split()
                recorded[name, int(rank)] = [float(loss) for loss in losses]
        wrong = [key for key, losses in found.items()
                 if len(losses) != len(recorded.get(key, [])) or
                 any(not abs(a - b) <= TOLERANCE for a, b in zip(losses, recorded[key]))]
        for name, rank in wrong:
            print(f"{options.file}: {name} of rank {rank} differs from what PyTorch {torch.__version__} computes")
        sys.exit(bool(wrong))
    with open(options.file, "w", encoding="utf-8") as out:
        for (name, rank), losses in sorted(found.items()):
            out.write(" ".join([name, str(rank), *(f"{loss:.10g}" for loss in losses)]) + "\n")


if __name__ == "__main__":
    main()
