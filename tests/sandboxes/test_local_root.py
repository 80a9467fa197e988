"""Local sandboxes on a folder with a Linux system, which each of them can write in a layer of its own."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from linux_root import OWNER, linux_root
from local_sandboxes import all_ended, bash, in_sandbox, processes_of

from agentrl.errors import ConfigError
from agentrl.sandboxes.base import SandboxSetup
from agentrl.sandboxes.local import overlay
from agentrl.sandboxes.local import sandbox as local
from agentrl.sandboxes.local.sandbox import LocalProvider
from agentrl.sandboxes.local.settings import LocalSandbox


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Path -> size and time of the last change."""
    found = {path: path.lstat() for path in folder.rglob("*")}
    return {str(path): (each.st_size, each.st_ctime_ns) for path, each in found.items()}


@pytest.mark.slow
def test_every_file_can_be_changed_and_the_folder_is_untouched():
    root = linux_root()
    before = listing(root)
    change = "set -e; echo new > /etc/release; echo x > /x; mkdir /srv; rm /usr/bin/tee; chmod 700 /usr; mv /var /var2"
    changed = bash(f"{change}; cat /etc/release; id -u", root=str(root))
    assert (changed.output, changed.exit_code) == ("new\n0\n", 0)
    assert bash("cat /etc/release; ls -d /x /srv /var2 2>/dev/null; command -v tee", root=str(root)).output == (
        "small\n/usr/bin/tee\n"
    )
    assert listing(root) == before


@pytest.mark.slow
def test_what_is_written_is_limited():
    fill = "for i in 1 2 3 4; do head -c 4000000 /dev/zero > /usr/$i; done 2>/dev/null; cat /usr/[1-4] | wc -c"
    written = bash(fill, root=str(linux_root()), disk_mb=8)
    assert 2**20 < int(written.output) <= 8 * 2**20


@pytest.mark.slow
def test_a_sandbox_ends_with_all_its_processes():
    async def run(sandbox):
        await sandbox.run_command("setsid nohup sleep 300 >/dev/null 2>&1 & setsid sleep 301 >/dev/null 2>&1 &", 10)
        found = processes_of(sandbox)
        assert len(found) >= 5  # two of bubblewrap, the program and both commands
        return found

    assert all_ended(in_sandbox(run, root=str(linux_root())))


def test_folders_and_variables_of_a_setup():
    async def run():
        provider = LocalProvider(LocalSandbox(root=linux_root()))
        sandbox = await provider.start(SandboxSetup("/opt/a", (("A", "b"),), ("/opt/a", "/etc/new")))
        try:
            return await sandbox.run_command("pwd; echo $A; touch x /etc/new/y && ls -d /etc/*", 10)
        finally:
            await sandbox.kill()

    assert asyncio.run(run()).output == "/opt/a\nb\n/etc/new\n/etc/release\n"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("/", "other than /"),
        ("/usr/none", "other than /"),
        ("{empty}", "it has no bash; it has no python3"),
        ("{root}", "its files belong to root"),
    ],
)
def test_folders_that_are_no_system_are_refused(tmp_path, given, why):
    linux_root()
    if given == "{root}" and os.geteuid() != 0:
        pytest.skip("only root has files of root")
    (tmp_path / "empty").mkdir()
    if os.geteuid() == 0:
        os.chown(tmp_path / "empty", OWNER, OWNER)
    settings = LocalSandbox(root=given.format(empty=tmp_path / "empty", root=tmp_path))
    with pytest.raises(ConfigError, match=why):
        asyncio.run(LocalProvider(settings).check())
    assert why in settings.lacking()


@pytest.mark.slow
def test_a_kernel_that_cannot_replace_folders_is_refused(monkeypatch):
    settings = LocalSandbox(root=linux_root())
    asyncio.run(LocalProvider(settings).check())
    monkeypatch.setattr(local, "_REPLACE", "raise OSError(5, 'Input/output error')")  # as kernels before 6.6
    with pytest.raises(ConfigError, match=r"Linux 6\.6.*Input/output error"):
        asyncio.run(LocalProvider(settings).check())


def test_a_bubblewrap_without_overlays_is_named(monkeypatch):
    root = linux_root()
    monkeypatch.setattr(overlay, "_output", lambda *_: "--tmpfs")
    overlay._overlaying.cache_clear()
    with pytest.raises(ConfigError, match="overlays"):
        asyncio.run(LocalProvider(LocalSandbox(root=root)).check())
    overlay._overlaying.cache_clear()
