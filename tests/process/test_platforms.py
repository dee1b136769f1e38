"""Where there is no memfd, eventfd or pidfd, `relume.init` alone still works: a run of one worker."""

import subprocess
import sys

PROGRAM = """
import os, sys
import torch, torch._dynamo  # torch itself is not what is under test
sys.platform = {platform!r}
for name in ("memfd_create", "eventfd", "eventfd_read", "eventfd_write", "pidfd_open", "posix_fallocate"):
    if hasattr(os, name):
        delattr(os, name)
if sys.platform == "win32":
    sys.modules["fcntl"] = None
import select
if hasattr(select, "poll"):
    del select.poll
import relume
run = relume.init(seed=0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run.protect(model=model, optimizer=optimizer)
data = relume.Shards([torch.randn(4) for _ in range(8)], global_batch_size=4, shards=4)
for step in run.steps(data, total=3):
    for batch in step:
        model(batch).sum().backward()
    optimizer.step()
print("done", step.number)
from relume.cli.main import main
sys.exit(main(["run", "x.py"]))
"""


def test_a_run_of_one_worker_needs_nothing_of_linux():
    for platform in ("win32", "darwin"):
        result = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(platform=platform)],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert "done 2" in result.stdout, result.stderr
        assert result.returncode == 2
        assert "needs Linux" in result.stderr
        assert "plain `python`" in result.stderr
