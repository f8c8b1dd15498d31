"""The tool's own output, run under overflow plans on a stand-in of accelerate that needs no torch."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.rewrite import Options, rewrite

IDIOMS = Path(__file__).parent.parent / "idioms"
CASES = [
    (folder, case)
    for folder in (IDIOMS, IDIOMS / "own")
    for case in json.loads((folder / "manifest.json").read_text())
]
NAMES = [case["id"] for _, case in CASES]
REPORTED = {  # words of the manifest's reports and the code that says so
    "01_plain_guard": ["reset-added"],
    "06_negated_continue_after_step": ["reset-added"],
    "11_modulo_outside_guard": ["trigger-gated"],
    "16_while_loop_closure_step": ["while-bound", "trigger-gated", "log-gated"],
    "20_gan_alternating_phases": ["gated"],
    "27_epoch_level_scheduler": ["epoch-flag"],
    "28_already_patched": ["applied"],
    "35_resume_arithmetic": ["epoch-budget", "resume-arithmetic"],
    "37_no_guard_no_accumulation": ["gated"],
    "40_collectives_in_guard": ["collectives", "data-counter"],
    "44_commented_out_guard": ["applied"],
    "46_windowed_mean_loss": ["sums-kept"],
    "14_counter_bumped_before_backward": ["before-step"],
    "15_range_bound_counter": ["range-bound", "gated"],
    "18_flag_passed_as_argument": ["flag-argument", "gated"],
    "21_two_optimizers_same_window": ["several-optimizers"],
    "23_step_in_backward_hook": ["step-in-hook"],
    "26_optimizer_never_prepared": ["unprepared-optimizer"],
}

spec = importlib.util.spec_from_file_location("check_idioms", IDIOMS / "check_idioms.py")
assert spec is not None and spec.loader is not None
check_idioms = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_idioms)


def run(path, plans):
    """The result of a loop under each plan."""
    command = [sys.executable, str(IDIOMS / "run_plans.py"), str(path), *plans]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def defects(result, expect):
    found = check_idioms.defects(result, expect)
    if len(result["logs"]) < expect.get("min_logs", 0):
        found.append(f"only {len(result['logs'])} lines logged")
    return found


def compare(original, rewritten, expect):
    """What is wrong with a rewrite, in the words of the idiom checks."""
    plans = expect.get("plans", check_idioms.PLANS)
    problems, shown = [], []
    for plan, before, after in zip(plans, run(original, plans), run(rewritten, plans), strict=True):
        shown += defects(before, expect) if plan else []
        if not plan and expect.get("finite_same", True) and before != after:
            problems.append(f"a finite run changed: {before} -> {after}")
        problems += [f"[{plan}] {item}" for item in defects(after, expect)]
        problems += [
            f"[{plan}] {name} changed"
            for name in expect.get("same_counters", [])
            if before["counters"][name] != after["counters"][name]
        ]
    return problems, shown


@pytest.mark.processes
@pytest.mark.parametrize(("folder", "case"), CASES, ids=NAMES)
def test_a_loop_comes_out_right_under_every_plan(folder, case, tmp_path):
    original = folder / f"{case['id']}.py"
    data = original.read_bytes()
    result = rewrite(data)
    if case["verdict"] in ("refuse", "noop"):
        assert result.after == data
        return
    assert result.after != data
    for line in case.get("keep_lines", []):
        assert line in result.after.decode()
    rewritten = tmp_path / original.name
    rewritten.write_bytes(result.after)
    problems, shown = compare(original, rewritten, case["expect"])
    assert not problems
    assert shown or case["expect"].get("no_defect"), "the original shows no defect: the case proves nothing"


@pytest.mark.parametrize(("folder", "case"), CASES, ids=NAMES)
def test_a_second_run_changes_nothing(folder, case):
    once = rewrite((folder / f"{case['id']}.py").read_bytes()).after
    assert rewrite(once).after == once


@pytest.mark.parametrize(("folder", "case"), CASES, ids=NAMES)
def test_the_report_names_what_must_be_reported(folder, case):
    sites = rewrite((folder / f"{case['id']}.py").read_bytes()).sites
    wanted = case.get("codes", []) + REPORTED.get(case["id"], [])
    assert set(wanted) <= {site.code for site in sites}


@pytest.mark.processes
def test_a_named_optimizer_is_the_one_that_counts(tmp_path):
    case = next(case for _, case in CASES if case["id"] == "120_counted_optimizer")
    original = IDIOMS / "own" / "120_counted_optimizer.py"
    refused = rewrite(original.read_bytes())
    assert any("--counted-optimizer self.opt" in site.message for site in refused.sites)
    rewritten = tmp_path / original.name
    rewritten.write_bytes(rewrite(original.read_bytes(), Options(counted_optimizer=case["counted"])).after)
    problems, shown = compare(original, rewritten, case["expect"])
    assert not problems
    assert shown


def test_every_loop_of_the_collection_is_in_its_manifest():
    for folder in (IDIOMS, IDIOMS / "own"):
        known = {case["id"] for case in json.loads((folder / "manifest.json").read_text())}
        assert {path.name.split(".")[0] for path in folder.glob("[0-9]*")} == known
