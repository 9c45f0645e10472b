"""Reads PyTorch's public names in its own sources, which its wheel contains. Nothing of PyTorch is imported.

A file's public names are its __all__, or without one the functions, classes and constants that it defines, and the
classes in C++ that it imports, if they do not begin with an underscore. Files of stubs (.pyi) add the methods and
properties of those classes.
"""

import ast
import os
import re

# For each module of the page, the files below torch/ that define its names, and what the page puts before the names.
SOURCES = {
    "torch.distributed.rpc": {
        "distributed/rpc/__init__.py": "",
        "distributed/rpc/api.py": "",
        "distributed/rpc/backend_registry.py": "",
        "distributed/rpc/constants.py": "constants.",
        "distributed/rpc/functions.py": "functions.",
        "distributed/rpc/options.py": "",
        "_C/_distributed_rpc.pyi": "",
    },
    "torch.futures": {"futures/__init__.py": ""},
    "torch.distributed.autograd": {
        "distributed/autograd/__init__.py": "",
        "_C/_distributed_autograd.pyi": "",
    },
    "torch.distributed.optim": {
        "distributed/optim/__init__.py": "",
    },
    "torch.distributed.nn": {
        "distributed/nn/api/remote_module.py": "",
        "distributed/nn/functional.py": "functional.",
    },
    "torch.distributed": {
        "distributed/__init__.py": "",
        "distributed/distributed_c10d.py": "",
        "distributed/rendezvous.py": "",
        "_C/_distributed_c10d.pyi": "",
    },
    "torch.distributed.device_mesh": {"distributed/device_mesh.py": ""},
    "torch.nn.parallel": {"nn/parallel/__init__.py": ""},
    "torch.nn.parallel.DistributedDataParallel": {"nn/parallel/distributed.py": ""},
    "torch.distributed.algorithms": {
        "distributed/algorithms/join.py": "",
        "distributed/algorithms/ddp_comm_hooks/__init__.py": "ddp_comm_hooks.",
        "distributed/algorithms/ddp_comm_hooks/ddp_zero_hook.py": "ddp_comm_hooks.",
        "distributed/algorithms/ddp_comm_hooks/debugging_hooks.py": "ddp_comm_hooks.",
        "distributed/algorithms/ddp_comm_hooks/default_hooks.py": "ddp_comm_hooks.",
        "distributed/algorithms/ddp_comm_hooks/post_localSGD_hook.py": "ddp_comm_hooks.",
        "distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py": "ddp_comm_hooks.",
        "distributed/algorithms/ddp_comm_hooks/quantization_hooks.py": "ddp_comm_hooks.",
        "distributed/algorithms/model_averaging/averagers.py": "model_averaging.",
        "distributed/algorithms/model_averaging/hierarchical_model_averager.py": "model_averaging.",
        "distributed/algorithms/model_averaging/utils.py": "model_averaging.",
    },
    "torch.utils.data.distributed": {"utils/data/distributed.py": ""},
    "torch.distributed.elastic": {
        "distributed/elastic/agent/server/api.py": "agent.server.",
        "distributed/elastic/events/__init__.py": "events.",
        "distributed/elastic/metrics/api.py": "metrics.",
        "distributed/elastic/multiprocessing/__init__.py": "multiprocessing.",
        "distributed/elastic/multiprocessing/errors/__init__.py": "multiprocessing.errors.",
        "distributed/elastic/rendezvous/__init__.py": "rendezvous.",
        "distributed/elastic/timer/api.py": "timer.",
    },
}
# The packages of torch.distributed that the page names as a whole.
WHOLE = ("fsdp", "tensor", "checkpoint", "pipelining")
LAUNCHER = "distributed/run.py"


# Loggers are not meant for users, and torch.distributed.Backend is another class than the one in the stubs.
NOT_PUBLIC = re.compile(r"(.*\.)?(log|logger|T|RankType)|Backend\..*")


def _name(node):
    return node.id if isinstance(node, ast.Name) else None


def _parse(torch, file):
    with open(os.path.join(torch, file), encoding="utf-8") as source:
        return ast.parse(source.read())


def _is_public(name):
    return name is not None and not name.startswith("_")


def _statements(tree):
    """The statements of a module, those under `if` included."""
    for node in tree.body:
        yield node
        if isinstance(node, ast.If):
            yield from _statements(node)


def _all_of(tree):
    """The names in __all__, or None."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and _name(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return None


def _defined(tree):
    names = []
    for node in _statements(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.append(node.name)
        elif isinstance(node, ast.Assign):
            names += [_name(target) for target in node.targets]
        elif isinstance(node, ast.AnnAssign):
            names.append(_name(node.target))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch._C"):
            # PyTorch's own classes in C++ become public where a module imports them.
            names += [alias.asname or alias.name for alias in node.names]
    return [name for name in names if _is_public(name)]


def names_of(torch, module):
    """The public names of one module of the page, with what the page puts before them."""
    found = set()
    for file, before in SOURCES[module].items():
        tree = _parse(torch, file)
        if file.endswith(".pyi"):  # After the files that say which classes are public.
            found |= {name for node in tree.body if isinstance(node, ast.ClassDef) and node.name in found
                      for name in _members(node)}
        else:
            names = _all_of(tree)
            found |= {before + name for name in (_defined(tree) if names is None else names)}
    return {name for name in found if not NOT_PUBLIC.fullmatch(name)}


def _members(node):
    for each in node.body:
        name = each.name if isinstance(each, ast.FunctionDef) else _name(getattr(each, "target", None))
        if _is_public(name):
            yield f"{node.name}.{name}"


def parameters_of(torch, file, name):
    """The parameters of the constructor and the public methods of a class."""
    tree = _parse(torch, file)
    node = next(each for each in _statements(tree) if isinstance(each, ast.ClassDef) and each.name == name)
    methods = {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}
    arguments = methods["__init__"].args
    return ({each.arg for each in arguments.args[1:] + arguments.kwonlyargs if _is_public(each.arg)} |
            {method for method in methods if _is_public(method)})


def options_of_launcher(torch):
    """The options of torchrun. Each is a tuple of its spellings."""
    calls = [node for node in ast.walk(_parse(torch, LAUNCHER))
             if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument"]
    spellings = [tuple(each.value for each in node.args if isinstance(each, ast.Constant)) for node in calls]
    return [each for each in spellings if each and each[0].startswith("-")]


def packages(torch):
    """The public packages and modules of torch.distributed."""
    folder = os.path.join(torch, "distributed")
    return {name.removesuffix(".py") for name in os.listdir(folder)
            if _is_public(name) and (name.endswith(".py") or os.path.exists(os.path.join(folder, name, "__init__.py")))}
