# Owner(s): ["module: inductor"]
"""Tests of ``range_autotune.measuring.free_memory``."""

import pathlib
import tempfile
from unittest import mock

from torch._inductor.test_case import run_tests, TestCase
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

import torch
from torch._inductor.range_autotune.measuring import free_memory
from torch._inductor.range_autotune.measuring.free_memory import free_bytes


AVAILABLE = 1000 * 1024


@instantiate_parametrized_tests
class TestCPU(TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for name in ("_MEMORY_INFO", "_GROUPS_OF_PROCESS", "_GROUPS"):
            patch = mock.patch.object(free_memory, name, self.folder / name)
            patch.start()
            self.addCleanup(patch.stop)
        self.write("_MEMORY_INFO", "MemTotal: 9000 kB\nMemAvailable:   1000 kB\n")

    def write(self, name, text):
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def group(self, version, path, limit, taken, reclaimable):
        limit_file, taken_file, part = free_memory._FILES_OF_GROUP[version]
        root = "_GROUPS/memory" if version == 1 else "_GROUPS"
        self.write(f"{root}/{path}/{limit_file}", f"{limit}\n")
        self.write(f"{root}/{path}/{taken_file}", f"{taken}\n")
        self.write(f"{root}/{path}/memory.stat", f"anon 5\n{part} {reclaimable}\n")

    def left(self):
        return free_bytes(torch.device("cpu"))

    def test_without_groups(self):
        self.assertEqual(self.left(), AVAILABLE)

    @parametrize("version,line", [(1, "4:cpu,memory:"), (2, "0::")])
    def test_group_with_a_limit(self, version, line):
        """Or one above it; files that the group keeps in memory are given up if need be."""
        self.write("_GROUPS_OF_PROCESS", f"1:cpuset:/\n{line}/outer/inner\n")
        self.group(version, "outer/inner", 5000, 3000, 400)
        self.assertEqual(self.left(), 5000 - (3000 - 400))
        self.group(version, "outer", 4000, 3500, 0)
        self.assertEqual(self.left(), 500)
        self.group(version, "outer", 4000, 4100, 0)
        self.assertEqual(self.left(), 0)

    def test_limit_of_a_container(self):
        """The path that the process is told is its host's."""
        self.write("_GROUPS_OF_PROCESS", "4:memory:/docker/0123\n0::/docker/0123\n")
        self.group(1, "", 5000, 3000, 0)
        self.assertEqual(self.left(), 2000)

    def test_groups_without_a_limit(self):
        self.write("_GROUPS_OF_PROCESS", "4:memory:/one\n0::/two\n")
        self.group(1, "one", 2**63 - 4096, 3000, 0)
        self.group(2, "two", "max", 3000, 0)
        self.assertEqual(self.left(), AVAILABLE)

    def test_no_such_file(self):
        (self.folder / "_MEMORY_INFO").unlink()
        self.assertIsNone(self.left())


class TestOthers(TestCase):
    def test_device_that_tells_nothing(self):
        self.assertIsNone(free_bytes(torch.device("meta")))

    def test_this_machine(self):
        left = free_bytes(torch.device("cpu"))
        self.assertTrue(left is None or left > 2**20)


if __name__ == "__main__":
    run_tests()
