import random, sys, os
from pathlib import Path
import pytest
from tests.chaos import schema
from tests.worker.harness import Fleet
def test_it(process_env, tmp_path):
    with Fleet(process_env, tmp_path) as fleet:
        v = schema.run(fleet, random.Random(1), seconds=int(os.environ.get("SECS","40")))
        print(v)
        Path("/tmp/schema_verdict.txt").write_text(str(v) + "\n" + "\n".join(v.broken))
