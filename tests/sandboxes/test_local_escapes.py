"""What code in a local sandbox must not be able to do. Each piece prints `ESCAPED` if it succeeds."""

# the attempts are one line each
# ruff: noqa: E501
from __future__ import annotations

import ast
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache

import pytest
from linux_root import linux_root
from local_sandboxes import all_ended, bash, in_sandbox, processes_of, python, require_bubblewrap

from agentrl.sandboxes import process
from agentrl.sandboxes.base import MAX_FILE_BYTES, SandboxEndedError
from agentrl.sandboxes.local.sandbox import LocalProvider
from agentrl.sandboxes.local.settings import LocalSandbox

SETUP = """
import ctypes, os, socket, struct, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, action, worked=lambda value: True):
    try:
        if worked(action()):
            print("ESCAPED", name)
    except (OSError, ValueError, subprocess.SubprocessError):
        pass
def call(number, *arguments):
    return libc.syscall(number, *arguments)
ok = lambda value: value >= 0
"""
MOST, NUM_STARTERS = 20, 3
"""Limit of processes, and processes outside of it: bubblewrap's own."""
ATTEMPTS = {
    "trace the parent": "attempt('', lambda: libc.ptrace(16, os.getppid(), 0, 0), ok)",
    "read memory of the parent": "attempt('', lambda: open(f'/proc/{os.getppid()}/mem', 'rb').read(1) or call(310), ok)",
    "mount": "attempt('', lambda: libc.mount(b'none', b'/work', b'tmpfs', 0, None), ok)",
    "unmount": "attempt('', lambda: libc.umount2(b'/proc', 2), ok)",
    "new user namespace": "attempt('', lambda: libc.unshare(0x10000000), ok)",
    "clone with a namespace": "attempt('', lambda: call(56, 0x10000000 | 17, 0, 0, 0, 0), lambda pid: os._exit(0) if pid == 0 else pid > 0)",
    "clone3": "attempt('', lambda: call(435, 0, 0), ok)",
    "join a namespace": "attempt('', lambda: libc.setns(os.open('/proc/1/ns/net', 0), 0), ok)",
    "change the root": "attempt('', lambda: os.chroot('/work'))",
    "become root": "attempt('', lambda: os.setuid(0))",
    "change groups": "attempt('', lambda: os.setgroups([0]))",
    "raise a limit": "import resource; attempt('', lambda: resource.setrlimit(resource.RLIMIT_NPROC, (10**6, 10**6)))",
    "make a device": "attempt('', lambda: os.mknod('/work/mem', 0o20666, os.makedev(1, 1)))",
    "read devices": "for d in ('/dev/mem', '/dev/kmsg', '/dev/kvm', '/dev/vda', '/dev/sda'): attempt(d, lambda: open(d, 'rb').read(1))",
    "write the system": "for p in ('/usr/x', '/etc/x', '/x', '/dev/x', '/dev/shm/x', '/bin/x', '/proc/sys/kernel/hostname', '/proc/sysrq-trigger', '/sys/x'): attempt(p, lambda: open(p, 'w'))",
    "real-time priority": "attempt('', lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))",
    "negative niceness": "attempt('', lambda: os.setpriority(os.PRIO_PROCESS, 0, -10))",
    "raw socket": "attempt('', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))",
    "packet socket": "attempt('', lambda: socket.socket(17, socket.SOCK_RAW, 0))",
    "netlink": "attempt('', lambda: socket.socket(16, socket.SOCK_RAW, 0))",
    "virtual machine socket": "attempt('', lambda: socket.socket(40, socket.SOCK_STREAM))",
    "network": "attempt('', lambda: socket.create_connection(('192.0.2.1', 80), 2))",
    "name service": "attempt('', lambda: socket.getaddrinfo('example.com', 80))",
    "keys of the kernel": "attempt('', lambda: call(250, 0, -3, 1), ok); attempt('', lambda: call(248, b'user', b'a', b'b', 1, -3), ok)",
    "bpf": "attempt('', lambda: call(321, 0, 0, 0), ok)",
    "performance counters": "attempt('', lambda: call(298, struct.pack('IIQ', 1, 120, 0) + bytes(120), 0, -1, -1, 0), ok)",
    "user faults": "attempt('', lambda: call(323, 1), ok)",
    "io_uring": "attempt('', lambda: call(425, 1, bytes(120)), ok)",
    "handle of a file": "attempt('', lambda: call(303, -100, b'/', bytes(200), bytes(8), 0), ok)",
    "personality": "attempt('', lambda: libc.personality(0x0040000), ok)",
    "another interface of system calls": "attempt('', lambda: call(0x40000000 + 101, 16, 1, 0, 0) if os.fork() == 0 else -1, ok)",
    "clock": "attempt('', lambda: libc.settimeofday(struct.pack('qq', 0, 0), None), ok)",
    "kill a process of the machine": "attempt('', lambda: os.kill(OUTSIDE, 9))",
    "see processes of the machine": "attempt('', lambda: [n for n in os.listdir('/proc') if n.isdigit() and int(n) > 1000], bool)",
    "type into the terminal": "import fcntl; attempt('', lambda: fcntl.ioctl(0, 0x5412, b'x'))",
    "setuid programs": "attempt('', lambda: subprocess.run(['su', '-c', 'id'], capture_output=True, timeout=5).returncode, lambda code: code == 0)",
    "a sandbox in the sandbox": "attempt('', lambda: subprocess.run(['bwrap', '--unshare-all', '--ro-bind', '/', '/', 'id'], capture_output=True).returncode, lambda code: code == 0)",
}


OF_ROOT = {
    "become root": "attempt('', lambda: os.setuid(1))",
    "write the system": "for p in ('/dev/x', '/dev/shm/x', '/proc/sys/kernel/hostname', '/proc/sysrq-trigger'): attempt(p, lambda: open(p, 'w'))",
    "the layer from outside": "for p in ('/sys', '/oldroot', '/newroot', '/proc/1/root/sys'): attempt(p, lambda: {'upper', 'work'} & {*os.listdir(p)}, bool)",
    "the folders of bubblewrap": "for p in ('/oldroot', '/newroot'): attempt(p, lambda: os.listdir(p))",
    "setuid programs": "attempt('', lambda: libc.prctl(39, 0, 0, 0, 0), lambda value: value != 1)  # PR_GET_NO_NEW_PRIVS",
}
"""In a sandbox with a `root`, whose user is its root."""
ATTEMPTS_AT = {"system": ATTEMPTS, "root": {**ATTEMPTS, **OF_ROOT}}


@pytest.fixture(scope="module")
def said() -> Callable[[str], dict[str, str]]:
    """Where -> name of an attempt -> what it printed, all in one sandbox."""

    @cache
    def said_at(where: str) -> dict[str, str]:
        pieces = [SETUP + f"OUTSIDE = {os.getpid()}", *ATTEMPTS_AT[where].values()]
        results = python(*pieces, **({"root": str(linux_root())} if where == "root" else {}))
        printed = (result.output + result.error for result in results[1:])
        return dict(zip(ATTEMPTS_AT[where], printed, strict=True))

    return said_at


@pytest.mark.parametrize(("where", "name"), [(where, name) for where, names in ATTEMPTS_AT.items() for name in names])
def test_attempts_fail(said, where, name):
    assert said(where)[name] == ""


def test_secrets_of_the_run_are_not_in_the_sandbox(monkeypatch):
    monkeypatch.setenv("AGENTRL_SECRET", "a-secret-value")
    result = bash("cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'; env; ls -la /proc/self/fd")
    assert "a-secret-value" not in result.output
    assert "AGENTRL" not in result.output


def test_files_of_the_run_are_not_in_the_sandbox(tmp_path):
    (tmp_path / "private").write_text("private text")
    with (tmp_path / "private").open() as file:
        os.set_inheritable(file.fileno(), True)
        result = bash(
            f"cat {tmp_path}/private /proc/self/fd/{file.fileno()} /proc/1/root{tmp_path}/private; ls /root /home"
        )
    assert "private text" not in result.output
    assert result.exit_code != 0


def test_servers_of_the_machine_cannot_be_reached(tmp_path):
    servers = [socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)]
    servers[1].bind(f"\0agentrl-{os.getpid()}")
    servers[2].bind(f"{tmp_path}/socket")
    for server in servers[1:]:
        server.listen()
    addresses = [server.getsockname() for server in servers]
    code = f"""
import socket
for family, address in zip((2, 1, 1), {addresses!r}):
    try:
        socket.socket(family).connect(address)
        print("ESCAPED", address)
    except OSError: pass
"""
    (result,) = python(code)
    for server in servers:
        server.close()
    assert (result.output, result.error) == ("", "")


def test_links_do_not_lead_out(tmp_path):
    (tmp_path / "private").write_text("private text")

    async def run(sandbox):
        await sandbox.run_command(f"ln -s / out; ln -s {tmp_path} there; ln -s /etc/shadow shadow", 10)
        found = await sandbox.run_command(f"cat out{tmp_path}/private there/private shadow", 10)
        for path in ("there/private", "shadow", f"out{tmp_path}/private"):
            with pytest.raises(Exception, match=r"no such file|No such file|denied"):
                await sandbox.download(path)
        with pytest.raises(Exception, match=r"No such|Read-only|Not a directory|exists"):
            await sandbox.upload("there/new/file", b"")
        return found

    assert "private text" not in in_sandbox(run).output
    assert [path.name for path in tmp_path.iterdir()] == ["private"]


@pytest.mark.slow
def test_sandboxes_do_not_see_each_other():
    async def run(first):
        await first.run_python("open('/tmp/mark', 'w').write('of the first')", 10)
        await first.run_command("sleep 100 &", 10)
        second = await LocalProvider(LocalSandbox()).start()
        try:
            return await second.run_command("cat /tmp/mark; ls /work /tmp; ps ax 2>/dev/null | grep -c 'sleep 100'", 10)
        finally:
            await second.kill()

    assert "of the first" not in in_sandbox(run).output


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "code",
    [
        "import os\nwhile True:\n    os.fork()",
        "import subprocess\nsubprocess.run(['bash', '-c', ':(){ :|:& };:'])",
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,)).start()",
    ],
    ids=["fork", "bash", "threads"],
)
def test_processes_are_limited(code):
    seen = set()

    async def run(sandbox):
        seen.update(processes_of(sandbox))
        with suppress(SandboxEndedError):
            await sandbox.run_python(code, 2)
            seen.update(processes_of(sandbox))

    in_sandbox(run, max_processes=MOST)
    assert 2 <= len(seen) <= MOST + NUM_STARTERS
    assert all_ended(seen)


def test_memory_is_limited():
    first, after = python("x = bytearray(2**40)", "y = bytearray(2**20); len(y)", memory_mb=512)
    assert "MemoryError" in first.error
    assert after.output == f"{2**20}\n"


def test_disk_is_limited():
    big, many = python(
        "open('big', 'wb').write(bytes(20 * 2**20))",
        "for n in range(20): open(f'f{n}', 'wb').write(bytes(2**20))",
        disk_mb=8,
    )
    assert "File too large" in big.error
    assert "No space left" in many.error


@pytest.mark.slow
def test_too_many_files_end_the_sandbox():
    with pytest.raises(SandboxEndedError):
        python("n = 0\nwhile True:\n    open(f'f{n}', 'w').close()\n    n += 1", seconds=60)


@pytest.mark.slow
def test_endless_output_is_cut_and_stopped():
    (result,) = python("while True: print('x' * 1000)", seconds=0.5)
    assert result.timed_out
    assert len(result.output) < 25_000


def test_a_crash_leaves_no_core_file():
    crashed, after = python("import os; os.abort()", "import os; os.listdir('/work')")
    assert crashed.state_lost
    assert after.output == "[]\n"


@pytest.mark.parametrize("target", ["os.getppid()", "-1"])
def test_killing_the_program_in_the_sandbox_ends_this_sandbox_alone(target):
    with pytest.raises(SandboxEndedError):
        python(f"import os, signal; os.kill({target}, signal.SIGKILL)", "1", "2")


@pytest.mark.slow
@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    "reply",
    [
        "b'{}'",
        "b'[' * 10**5",
        "b'\\xff' * 10**5",
        "b'{\"id\": ' + b'1' * 10**5 + b'}'",
        f"b'x' * {2 * MAX_FILE_BYTES + 2**20}",
    ],
    ids=["another id", "deep", "no text", "a long number", "endless"],
)
def test_false_replies_end_the_sandbox(monkeypatch, reply):
    monkeypatch.setattr(
        process, "program", lambda: f'import os\nos.write(1, b\'{{"id": "ready"}}\\n\')\n{_WRITES.format(reply)}'
    )
    with pytest.raises(SandboxEndedError):
        python("1")


_WRITES = """
import sys
sys.stdin.readline()
sys.stdout.buffer.write({} + b"\\n")
sys.stdout.flush()
sys.stdin.readline()
"""


def test_the_replies_of_the_program_cannot_be_written_by_the_code():
    forged, after = python("import os; os.write(os.open(f'/proc/{os.getppid()}/fd/1', 1), b'[]\\n')", "'next'")
    assert "PermissionError" in forged.error
    assert after.output == "'next'\n"


@pytest.mark.slow
def test_a_stopped_program_is_killed_after_the_deadline(monkeypatch):
    monkeypatch.setattr("agentrl.sandboxes.process.GRACE_S", 0.2)
    with pytest.raises(SandboxEndedError, match="did not answer"):
        python("import os, signal; os.kill(os.getppid(), signal.SIGSTOP)", seconds=0.3)


@pytest.mark.slow
def test_nothing_goes_on_after_the_end():
    async def run(sandbox):
        await sandbox.run_command("setsid nohup sleep 1000 & disown; (trap '' TERM HUP INT; sleep 1000) &", 10)
        return processes_of(sandbox)

    during = in_sandbox(run)
    assert len(during) >= 4
    assert all_ended(during)


@pytest.mark.slow
def test_nothing_goes_on_after_the_run_is_killed():
    require_bubblewrap()
    program = (
        "import asyncio, os, signal\n"
        "from local_sandboxes import processes_of\n"
        "from agentrl.sandboxes.local.sandbox import LocalProvider\n"
        "from agentrl.sandboxes.local.settings import LocalSandbox\n"
        "async def main():\n"
        "    sandbox = await LocalProvider(LocalSandbox()).start()\n"
        "    await sandbox.run_command('setsid sleep 1000 & echo', 10)\n"
        "    print(sorted(processes_of(sandbox)), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=env, check=False)
    during = set(ast.literal_eval(done.stdout))
    assert len(during) >= 3
    assert all_ended(during)
