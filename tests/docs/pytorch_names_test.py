#!/usr/bin/python3
"""Checks that docs/coming_from_pytorch.md names every public name of PyTorch's distributed package.

usage: pytorch_names_test.py PAGE LOCATION

LOCATION is a file with the folder of the torch wheel, whose Python sources have the names. The members of a class need
no rows of their own if the row of the class says "not there".
"""

import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "../python"))
import report

import pytorch_names

PAGE, LOCATION = (sys.argv.pop(1) for _ in range(2))
sys.argv.insert(1, PAGE)  # The module below finds the source tree with it.
import coming_from_pytorch_test as page

del sys.argv[1]


class Names(unittest.TestCase):
    def setUp(self):
        with open(LOCATION, encoding="utf-8") as file:
            self.torch = os.path.join(file.read().strip(), "torch")
        report.needs("wheel", "" if os.path.exists(os.path.join(self.torch, "distributed")) else
                     f"{self.torch} does not contain PyTorch's Python sources: use the wheel that tools/setup installs")
        with open(page.PAGE, encoding="utf-8") as file:
            self.text = file.read()
        self.rows = {}  # (module, name): whether the row says that it is not there
        for row in page.rows_of(self.text):
            for name in row.names("PyTorch"):
                self.rows[row.module, name] = row.cells["Gradwire"] == "not there"

    def missing(self, module, names):
        """The names without a row. Classes in C++ are also names of the modules that use them."""
        where = [module] + ["torch.nn.parallel.DistributedDataParallel"] * (module == "torch.distributed")

        def has(name):
            owner = name.rpartition(".")[0]
            return any((each, name) in self.rows or self.rows.get((each, owner)) for each in where)

        return [f"{module} {name}" for name in sorted(names) if not has(name)]

    def test_each_public_name_has_a_row(self):
        missing, count = [], 0
        for module in pytorch_names.SOURCES:
            names = pytorch_names.names_of(self.torch, module)
            self.assertTrue(names, module)
            missing += self.missing(module, names)
            count += len(names)
        self.assertFalse(missing, "these names of PyTorch have no row in the page:\n" + "\n".join(missing))
        print(f"{count} names of PyTorch have rows")

    def test_each_parameter_of_distributed_data_parallel_has_a_row(self):
        module = "torch.nn.parallel.DistributedDataParallel"
        names = pytorch_names.parameters_of(self.torch, "nn/parallel/distributed.py", "DistributedDataParallel")
        self.assertIn("bucket_cap_mb", names)
        self.assertEqual(self.missing(module, names), [])

    def test_each_option_of_torchrun_has_a_row(self):
        options = pytorch_names.options_of_launcher(self.torch)
        self.assertGreater(len(options), 20)
        missing = [each for each in options if not any(("torchrun", spelling) in self.rows for spelling in each)]
        self.assertEqual(missing, [])

    def test_each_package_has_tables_or_is_named_as_a_whole(self):
        covered = {file.split("/")[1].removesuffix(".py") for files in pytorch_names.SOURCES.values() for file in files
                   if file.startswith("distributed/")} | {"launch", "run"}
        whole = self.text.split("## Modules without a counterpart")[1]
        missing = [name for name in sorted(pytorch_names.packages(self.torch) - covered)
                   if f"`torch.distributed.{name}`" not in whole]
        self.assertFalse(missing, f"these modules of torch.distributed are not in the page: {', '.join(missing)}")


if __name__ == "__main__":
    report.main()
