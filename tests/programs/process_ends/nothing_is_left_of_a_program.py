import subprocess
import sys
import time

from time_limits import limit
from workers import PROGRAM, are_mapped, is_running, wait_until

exits = eval(sys.argv[1])
PIPE = subprocess.PIPE
inners = [
    subprocess.Popen([*PROGRAM, "inner.py", end], text=True, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    for end, _, _ in exits.values()
]
for inner, (name, (_, expected, words)) in zip(inners, exits.items(), strict=True):
    pids = [int(pid) for pid in inner.stdout.readline().split()]
    assert len(pids) == 4, inner.stderr.read()
    arenas = {int(inode) for inode in inner.stdout.readline().split()}
    assert are_mapped(arenas)
    begin = time.monotonic()
    print(file=inner.stdin, flush=True)
    code = inner.wait(limit(60))
    wait_until(lambda: not any(is_running(pid) for pid in pids), 60)
    seconds = time.monotonic() - begin
    text = inner.stderr.read()
    assert code == expected, (name, code, text)
    assert words in text if words else not text, (name, text)
    assert "gnored" not in text, (name, text)
    assert seconds < limit(60) and not are_mapped(arenas), (name, seconds)
    print(f"{name}: {seconds:.2f} s")
