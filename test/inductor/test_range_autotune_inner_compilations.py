# Owner(s): ["module: inductor"]
"""Compilations that begin while another one is under way."""

from unittest import mock

from torch._inductor.test_case import run_tests, TestCase
from torch._inductor.triton_bundler import TritonBundler

from torch._inductor.range_autotune.modules.inner_compilations import with_own_bundle


class TestOwnBundle(TestCase):
    def setUp(self):
        super().setUp()
        enabled = mock.patch.object(TritonBundler, "is_enabled", return_value=True)
        self.enterContext(enabled)
        self.addCleanup(TritonBundler.end_compile)

    def compile(self, inside=lambda: None):
        """What a graph's bundle has at the end, of one kernel and of ``inside``."""

        @with_own_bundle
        def compile_graph(name):
            TritonBundler.begin_compile()
            try:
                TritonBundler.put(name, 0)
                inside()
                return [entry.kernel_hash for entry in TritonBundler._entries]
            finally:
                TritonBundler.end_compile()

        return compile_graph("own")

    def test_one_inside_of_another(self):
        inner = []
        outer = self.compile(lambda: inner.append(self.compile()))
        self.assertEqual((outer, *inner), (["own"], ["own"]))
        self.assertIsNone(TritonBundler._entries)

    def test_one_that_fails_inside_of_another(self):
        def fail():
            raise RuntimeError("no registers left")

        def inside():
            with self.assertRaisesRegex(RuntimeError, "no registers"):
                self.compile(fail)

        self.assertEqual(self.compile(inside), ["own"])


if __name__ == "__main__":
    run_tests()
