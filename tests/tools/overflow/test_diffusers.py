"""The real text-to-image example of Diffusers, on a tiny pipeline that is built from configs."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = os.environ.get("DIFFUSERS_CHECKOUT", "")
NEEDED = ("diffusers", "torchvision", "datasets", "PIL", "tensorboard")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.processes,
    pytest.mark.xdist_group("overflow-diffusers"),
    pytest.mark.skipif(not CHECKOUT, reason="DIFFUSERS_CHECKOUT does not name a checkout of Diffusers"),
    pytest.mark.skipif(bool(MISSING), reason=f"the example needs packages that are not installed: {MISSING}"),
]
TABLE = """\
| run                              | attempts | applied updates | EMA calls | final `global_step` | exit code |
|----------------------------------|---------:|----------------:|----------:|--------------------:|----------:|
| finite                           |        6 |               6 |         6 |                   6 |         0 |
| overflow at attempt 4            |        6 |               5 |         6 |                   6 |         0 |
| overflow at attempt 4, rewritten |        7 |               6 |         6 |                   6 |         0 |
"""


def test_the_table_of_the_issue_comes_out_of_the_real_script(overflow, scripts: Path, tmp_path: Path) -> None:
    builder = [sys.executable, str(scripts / "tiny_pipeline.py"), str(tmp_path / "tiny"), "--images", "8"]
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    subprocess.run(builder, check=True, env={**os.environ, **offline})
    script = Path(CHECKOUT) / "examples" / "text_to_image" / "train_text_to_image.py"
    words = ["--pretrained_model_name_or_path", "tiny/pipeline", "--train_data_dir", "tiny/images", "--use_ema"]
    words += ["--resolution", "16", "--train_batch_size", "1", "--max_train_steps", "6", "--seed", "0"]
    words += ["--checkpointing_steps", "3", "--output_dir", "out/{run}"]
    result = overflow("--at", "4", "--compare-rewrite", "--", script, *words, env=offline)
    assert result.returncode == 0, result.stdout + result.stderr
    assert TABLE in result.stdout
    assert "  EMA moved on a skipped update at attempt 4" in result.stdout
