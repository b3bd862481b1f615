# Owner(s): ["module: inductor"]
"""Times that survive the process: what is kept, what a file may be."""

import json
import os
import pathlib
import re
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

from range_autotune_testing import ENVIRONMENT
from torch._dynamo.utils import counters
from torch._inductor.test_case import run_tests, TestCase
from torch._inductor.utils import fresh_cache
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

import torch
from torch._inductor import config
from torch._inductor.range_autotune.caching import timing_cache
from torch._inductor.range_autotune.caching.timing_cache import (
    lookup,
    lookup_record,
    store,
    store_record,
)
from torch._inductor.range_autotune.caching.timing_keys import Environment
from torch._inductor.range_autotune.kernel_configs.kernel_config_ranges import (
    ConfigRecord,
)
from torch._inductor.range_autotune.times import Failure, failure_of, Findings, Timing


TIMES = {0: Timing(1.5, 0.25), 1: Failure("it does not run: no"), -1: Timing(3.0)}
COMPARISONS = {0: None, 1: "it differs", -1: Failure("no memory")}
FOUND = Findings(TIMES, COMPARISONS)
TEXTS = {0: "zero", 1: "one", -1: "fallback"}


def file_content(candidate):
    """A file's, with what is kept of candidate zero."""
    known = f'{{"zero": {candidate}}}'
    return f'{{"format": 3, "not_measured": null, "candidates": {known}}}'


class CacheTestCase(TestCase):
    def setUp(self):
        super().setUp()
        counters.clear()
        self.enterContext(fresh_cache())
        self.enterContext(
            mock.patch.object(Environment, "current", return_value=ENVIRONMENT)
        )

    def files(self):
        folder = pathlib.Path(timing_cache.cache_dir()) / "custom_op_timings"
        return sorted(path for path in folder.rglob("*") if path.is_file())


class TestEntries(CacheTestCase):
    def test_what_is_stored_is_found(self):
        self.assertIsNone(lookup("here", TEXTS))
        store("here", TEXTS, FOUND)
        self.assertEqual(lookup("here", TEXTS), FOUND)
        self.assertIsNone(lookup("there", TEXTS))
        self.assertEqual(counters["inductor"]["custom_op_timing_cache_hit"], 1)
        self.assertEqual(counters["inductor"]["custom_op_timing_cache_miss"], 2)

    def test_where_nothing_can_be_measured(self):
        not_measured = Findings(not_measured="for 32 bits")
        store("here", TEXTS, not_measured)
        self.assertEqual(lookup("here", TEXTS), not_measured)
        store("here", TEXTS, Findings())
        self.assertIsNone(lookup("here", TEXTS))

    def test_who_was_not_called(self):
        for entry in (
            Findings({0: Timing(1.0)}, out=frozenset({1, -1})),
            Findings(
                {0: Failure("it crashed", everywhere=True)}, out=frozenset({1, -1})
            ),
        ):
            store("here", TEXTS, entry)
            self.assertEqual(lookup("here", TEXTS), entry)

    def test_configs_of_kernels(self):
        times = {"usual": TIMES[0], "other": TIMES[1]}
        at = {16: {"kernel": times}, 4096: {}}
        record = ConfigRecord({"kernel": "usual", "sum": "usual"}, ["kernel"], at)
        self.assertIsNone(lookup_record("here", "zero"))
        store_record("here", "zero", record)
        self.assertEqual(lookup_record("here", "zero"), record)
        self.assertIsNone(lookup_record("here", "one"))
        self.assertIsNone(lookup_record("there", "zero"))
        with config.patch(autotune_local_cache=False):
            self.assertIsNone(lookup_record("here", "zero"))

    def test_what_may_pass_is_not_kept_of_configs(self):
        full = {"kernel": {"usual": TIMES[0], "other": Failure("busy", may_pass=True)}}
        fine = {"kernel": {"usual": TIMES[0], "other": TIMES[1]}}
        store_record("here", "zero", ConfigRecord({}, [], {1: full, 2: fine}))
        self.assertEqual(lookup_record("here", "zero"), ConfigRecord({}, [], {2: fine}))

    @parametrize(
        "content",
        (
            "",
            "[]",
            "[" * 100_000,
            '{"format": 1, "usual": {}, "in_doubt": [], "at": []}',
            '{"format": 3, "usual": {}, "at": []}',
            '{"format": 3, "usual": [], "in_doubt": [], "at": []}',
            '{"format": 3, "usual": {}, "in_doubt": 0, "at": []}',
            '{"format": 3, "usual": {}, "in_doubt": [], "at": [["x", {}]]}',
            '{"format": 3, "usual": {}, "in_doubt": [], "at": [[1, {"k": 2}]]}',
            '{"format": 3, "usual": {}, "in_doubt": [], "at": [[1, {"k": {"c": {"ms": 1}}}]]}',
        ),
    )
    def test_a_damaged_record(self, content):
        store_record("here", "zero", ConfigRecord())
        (file,) = self.files()
        file.write_text(content)
        self.assertIsNone(lookup_record("here", "zero"))

    def test_indices_do_not_matter(self):
        store("here", TEXTS, FOUND)
        self.assertEqual(
            lookup("here", {7: "fallback", 3: "zero"}),
            Findings(
                {7: TIMES[-1], 3: TIMES[0]}, {7: COMPARISONS[-1], 3: COMPARISONS[0]}
            ),
        )

    def test_one_missing_candidate_is_a_miss_of_all(self):
        store("here", TEXTS, FOUND)
        self.assertIsNone(lookup("here", {**TEXTS, 2: "new"}))

    def test_times_of_two_runs_are_never_mixed(self):
        store("here", TEXTS, FOUND)
        store("here", {0: "zero", 2: "new"}, Findings({0: Timing(9.0), 2: Timing(8.0)}))
        self.assertEqual(lookup("here", {0: "zero"}), Findings({0: Timing(9.0)}))
        self.assertIsNone(lookup("here", TEXTS))

    def test_failures_that_may_pass_are_not_kept(self):
        for passing in (
            Findings({**TIMES, 1: Failure("no memory", may_pass=True)}),
            Findings(TIMES, {1: Failure("no memory", may_pass=True)}),
        ):
            store("here", TEXTS, passing)
        self.assertIsNone(lookup("here", TEXTS))
        self.assertEqual(lookup("here", {0: "zero"}), Findings({0: TIMES[0]}))

    @parametrize(
        "error, may_pass",
        (
            (torch.OutOfMemoryError("no"), True),
            (MemoryError("no"), True),
            (TimeoutError("no"), True),
            (torch.AcceleratorError("no"), True),
            (RuntimeError("no"), False),
        ),
    )
    def test_which_failures_may_pass(self, error, may_pass):
        name = type(error).__name__
        found = failure_of(error)
        self.assertEqual(found.may_pass, may_pass)
        self.assertIn(f"{name}: no", found.reason)

    @parametrize(
        "content",
        (
            "",
            '{"format": 3, "candidates"',
            "[]",
            "null",
            "{}",
            '{"format": 3}',
            '{"format": 3, "candidates": {"zero": {"ms": 1.0, "error": 0.0}}}',
            '{"format": 3, "not_measured": null, "candidates": []}',
            '{"format": 0, "times": {"zero": {"ms": 1.0, "error": 0.0}}}',
            "[" * 100_000,
            file_content("1.0"),
            file_content('{"ms": 1.0}'),
            file_content('{"ms": "fast", "error": 0.0}'),
            file_content('{"ms": NaN, "error": 0.0}'),
            file_content('{"ms": -1.0, "error": 0.0}'),
            file_content(f'{{"ms": {10**400}, "error": 0.0}}'),
            file_content('{"ms": 1.0, "error": 0.0, "mismatch": [1]}'),
            file_content("{}").replace("null", "1"),
            "no UTF-8: \xff",
        ),
    )
    def test_a_bad_file_is_a_miss(self, content):
        store("here", TEXTS, FOUND)
        (file,) = self.files()
        file.write_bytes(content.encode("latin-1"))
        self.assertIsNone(lookup("here", {0: "zero"}))
        store("here", TEXTS, FOUND)
        self.assertEqual(lookup("here", TEXTS), FOUND)

    def test_a_file_says_what_it_holds(self):
        store("here", TEXTS, FOUND)
        (file,) = self.files()
        self.assertEqual(
            json.loads(file.read_text()),
            {
                "format": 5,
                "not_measured": None,
                "candidates": {
                    "zero": {"ms": 1.5, "error": 0.25, "mismatch": None},
                    "one": {
                        "failure": "it does not run: no",
                        "all": False,
                        "mismatch": "it differs",
                    },
                    "fallback": {"ms": 3.0, "error": 0.0, "not_compared": "no memory"},
                },
            },
        )

    def test_writers_at_once(self):
        runs = [
            Findings({0: Timing(float(n)), 1: Timing(float(n)), -1: Timing(float(n))})
            for n in range(1, 9)
        ]

        def write_and_read(entry):
            store("here", TEXTS, entry)
            return lookup("here", TEXTS)

        with ThreadPoolExecutor(8) as pool:
            found = [*pool.map(write_and_read, runs * 8)]
        self.assertEqual(len(found), 64)
        for entry in found:
            self.assertIn(entry, runs)
        self.assertEqual(len(self.files()), 1)

    def test_a_folder_that_cannot_be_written(self):
        folder = pathlib.Path(timing_cache.cache_dir()) / "custom_op_timings"
        folder.write_text("a file in its place")
        with self.assertLogs(timing_cache.log, "INFO") as logged:
            store("here", TEXTS, FOUND)
        self.assertIn("Measured times cannot be cached: ", logged.output[0])
        self.assertIsNone(lookup("here", TEXTS))

    @parametrize(
        "patch", ({"autotune_local_cache": False}, {"force_disable_caches": True})
    )
    def test_switched_off(self, patch):
        with config.patch(patch):
            store("here", TEXTS, FOUND)
            self.assertIsNone(lookup("here", TEXTS))
        self.assertEqual(self.files(), [])
        self.assertNotIn("custom_op_timing_cache_miss", counters["inductor"])
        store("here", TEXTS, FOUND)
        with config.patch(patch):
            self.assertIsNone(lookup("here", TEXTS))


instantiate_parametrized_tests(TestEntries)


# Nothing in it needs a C++ compiler, which would take most of the time.
MODEL = """
    import json, math, sys, torch
    from torch._dynamo.utils import counters
    from torch._inductor.kernel.custom_op import *
    from torch._inductor.range_autotune import lowering
    from torch._inductor.range_autotune.modules.subgraph_module import SubgraphModule

    @torch.library.custom_op("timing_cache::op", mutates_args=())
    def op(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x @ w

    op.register_fake(lambda x, w: x.new_empty(x.shape[0], w.shape[1]))

    def guards(x, w):
        return x @ w if x.shape[0] > 32 else torch.mm(x, w)

    def fails(x, w):
        return torch.ops.timing_cache.raises(x @ w)

    @torch.library.custom_op("timing_cache::raises", mutates_args=())
    def raises(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("it always does")

    raises.register_fake(torch.empty_like)

    def wrong(x, w):
        return torch.mm(x, w.T)

    def tiles(x, w):
        return torch.ops.timing_cache.raises_elsewhere(x @ w)

    @torch.library.custom_op("timing_cache::raises_elsewhere", mutates_args=())
    def raises_elsewhere(x: torch.Tensor) -> torch.Tensor:
        assert len(x) in (32, 100)  # where it is timed
        return x.clone()

    raises_elsewhere.register_fake(torch.empty_like)

    def few(x, w):
        return torch.ops.timing_cache.raises_for_many(x @ w)

    @torch.library.custom_op("timing_cache::raises_for_many", mutates_args=())
    def raises_for_many(x: torch.Tensor) -> torch.Tensor:
        assert len(x) < 64
        return x.clone()

    raises_for_many.register_fake(torch.empty_like)

    def uncompiled(x, w):
        return torch.mm(torch.mm(x, w), w)

    real_load = SubgraphModule._load

    def load(module, graph):
        if "uncompiled" in (graph.name or ""):
            raise RuntimeError("no registers left")
        return real_load(module, graph)

    SubgraphModule._load = load
    impls = [torch.mm, lambda x, w: torch.mm(x, w), guards, fails, wrong, tiles, few]
    impls += [uncompiled]
    winners = []
    decide = lowering.decide
    lowering.decide = lambda tuning: winners.append(decide(tuning)) or winners[-1]
    x = torch.randn(100, 16)
    torch._dynamo.mark_dynamic(x, 0)
    for check in sys.argv[1:]:
        register_custom_op_autotuning(
            op,
            configs=[CustomOpRangeConfig("x", 0, [(0, 64), (64, math.inf)], impls)],
            representative_sizes=[32, 100, 2**40],  # the last has no room in any memory
            numerics_check=check,
        )
        torch.compile(op)(x, torch.randn(16, 16))
        print(json.dumps([str(winners), counters["inductor"]]))
        print("END OF MODEL", file=sys.stderr)
        winners.clear()
        counters.clear()
"""


class TestTwoProcesses(TestCase):
    def compile(self, cache_dir):
        """
        The winner table, the counters and the warnings of a process that compiles the model,
        by whether results are compared.
        """
        checks = ("off", "warn", "drop")
        env = {
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": cache_dir,
            "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
        }
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(MODEL), *checks],
            env=env,
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.returncode, 0, msg=done.stderr)
        of_each = zip(
            checks, done.stdout.splitlines(), done.stderr.split("END OF MODEL")
        )
        return {
            check: (*json.loads(found), re.findall(r"candidate '.*", said))
            for check, found, said in of_each
        }

    def test_the_second_measures_nothing(self):
        with fresh_cache():
            cache_dir = timing_cache.cache_dir()
            first, second = (self.compile(cache_dir) for _ in range(2))
        for check in ("off", "warn", "drop"):
            with self.subTest(check):
                self.check_second(check, first[check], second[check])

    def check_second(self, check, found, found_again):
        winners, first, warnings = found
        again, second, warnings_again = found_again
        self.assertGreater(first["custom_op_candidate_timings"], 0)
        self.assertEqual(winners, again)
        for count in (
            "custom_op_candidate_timings",
            "subgraph_modules_generated",
            "subgraph_module_loads",
        ):
            self.assertGreater(first[count], 0)
            self.assertNotIn(count, second)
        self.assertGreater(second["custom_op_timing_cache_hit"], 0)
        self.assertLessEqual({*warnings_again}, {*warnings})
        self.assertIn("'tiles'", str(warnings_again))
        self.assertIn("'uncompiled' is left out: it does not", str(warnings_again))
        self.assertIn("'few' is left out in range [64, inf)", str(warnings_again))
        self.assertEqual("'wrong'" in str(warnings_again), check != "off")


if __name__ == "__main__":
    run_tests()
