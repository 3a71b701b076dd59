from __future__ import annotations

import subprocess
import sys

FRAMES = """
import resource, sys
from collections import deque
from rmq.broker.process import keep_freed_memory
assert sys.argv[1] == "off" or keep_freed_memory()
newest = deque(maxlen=32)
def receive(frames):
    for number in range(frames):
        newest.append(bytearray((1 << 20) + number * 997 % 60_000))
receive(100)  # the heap grows to what is needed at a time
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
receive(300)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(setting: str) -> int:
    """How many pages of memory the system had to provide while 300 frames of a megabyte came and went."""
    done = subprocess.run([sys.executable, "-c", FRAMES, setting], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_buffers_of_frames_are_not_made_of_new_memory_each_time() -> None:
    kept, given_back = faults("on"), faults("off")

    assert kept < 300 * 256 / 10
    assert kept < given_back
