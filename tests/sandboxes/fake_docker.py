"""A `docker` or `podman` command for tests: containers are bubblewrap processes of this machine.

It knows the options that agentrl uses and refuses others, as the real commands do. Its folder, the first argument, is
the "daemon": a file per container, the images that are there (`images`, a line each), and `faults`: a file per command
(`run`, `rm`, `ps`, ...) or `daemon` for all, with what to do. The file `log` lists the calls.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

FOLDER = Path(sys.argv[1])
FLAGS = {"--rm", "--interactive", "--read-only", "--all", "--no-trunc", "--quiet", "--force", "--volumes"}
WITH_VALUE = {
    *("--name", "--label", "--pull", "--log-driver", "--hostname", "--network", "--tmpfs", "--workdir", "--user"),
    *("--cap-drop", "--security-opt", "--memory", "--memory-swap", "--cpus", "--pids-limit", "--env", "--entrypoint"),
    *("--format", "--filter", "--cap-add", "--tag"),
}


def main(arguments: list[str]) -> int:
    with (FOLDER / "log").open("a") as log:
        log.write(json.dumps(arguments) + "\n")
    name = arguments[0]
    for fault in (FOLDER / "faults" / "daemon", FOLDER / "faults" / name):
        if fault.exists() and (code := misbehave(fault.read_text())) is not None:
            return code
    options, rest = parsed(arguments[1:])
    return {"run": run, "ps": ps, "rm": rm, "image": image, "pull": pull, "build": build}[name](options, rest)


def misbehave(fault: str) -> int | None:
    if fault == "hang":
        time.sleep(3600)
    if fault == "dead":
        return failed("Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is it running?")
    if fault.startswith("says "):
        return failed(fault.removeprefix("says "), 125)
    return None


def failed(text: str, code: int = 1) -> int:
    print(text, file=sys.stderr)
    return code


def parsed(arguments: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Options by name and, from the first word that is none on, the rest."""
    options: dict[str, list[str]] = {}
    while arguments and arguments[0].startswith("--"):
        name = arguments.pop(0)
        if name not in FLAGS | WITH_VALUE:
            sys.exit(failed(f"unknown flag: {name}", 125))
        options.setdefault(name, []).append(arguments.pop(0) if name in WITH_VALUE else "")
    return options, arguments


def run(options: dict[str, list[str]], rest: list[str]) -> int:
    if rest[0] not in (FOLDER / "images").read_text().split():
        return failed(f"Unable to find image '{rest[0]}' locally", 125)
    (name,) = options["--name"]
    pipe = subprocess.PIPE
    command = [*bubblewrap(options, rest[0]), *options["--entrypoint"], *rest[1:]]
    container = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
    record = {"labels": options["--label"], "pid": container.pid, "client": os.getpid(), "options": options}
    (FOLDER / "containers" / name).write_text(json.dumps(record))
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(failed("error waiting for container: unexpected EOF", 125)))
    assert container.stdin is not None
    assert container.stdout is not None
    assert container.stderr is not None
    threading.Thread(target=copy, args=(0, container.stdin.fileno()), daemon=True).start()
    outputs = [threading.Thread(target=copy, args=(container.stdout.fileno(), 1))]
    outputs += [threading.Thread(target=copy, args=(container.stderr.fileno(), 2))]
    for thread in outputs:
        thread.start()
    for thread in outputs:
        thread.join()
    code = container.wait()
    (FOLDER / "containers" / name).unlink(missing_ok=True)
    return 128 - code if code < 0 else code


def copy(source: int, sink: int) -> None:
    """Copy to the end of the source, which ends the sink."""
    with suppress(OSError):  # the other end is closed
        while data := os.read(source, 2**16):
            while data:
                data = data[os.write(sink, data) :]
    os.close(sink)


def bubblewrap(options: dict[str, list[str]], image: str) -> list[str]:
    prefix = os.path.realpath(sys.base_prefix)
    command = [
        "bwrap",
        "--unshare-all",
        "--unshare-user",
        "--disable-userns",
        "--as-pid-1",
        "--new-session",
        "--die-with-parent",
    ]
    command += ["--clearenv", "--setenv", "PATH", f"{prefix}/bin:/usr/bin:/bin", "--cap-drop", "ALL"]
    for each in options["--env"]:
        command += ["--setenv", *each.split("=", 1)]
    for path in ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/alternatives", "/etc/ld.so.cache", prefix):
        command += ["--ro-bind-try", path, path]
    command += ["--proc", "/proc", "--dev", "/dev", *files_of_image(options["--name"][0], image)]
    for each in options.get("--tmpfs", []):
        path, _, rules = each.partition(":")
        (size,) = (rule.split("=")[1] for rule in rules.split(",") if rule.startswith("size="))
        command += ["--size", str(int(size.removesuffix("m")) * 2**20), "--tmpfs", path]
    (memory,), (processes,) = options["--memory"], options["--pids-limit"]
    limits = {"memory.max": str(int(memory.removesuffix("m")) * 2**20), "pids.max": processes}
    for file, limit in limits.items():
        (FOLDER / file).write_text("max" if (FOLDER / "faults" / "limits").exists() else limit)
        command += ["--ro-bind", str(FOLDER / file), f"/sys/fs/cgroup/{file}"]
    user, group = options.get("--user", ["0:0"])[0].split(":")
    command += ["--remount-ro", "/", "--chdir", "/work"] if "--read-only" in options else []
    command += ["--chdir", options["--workdir"][0]] if "--workdir" in options else []
    return [*command, "--remount-ro", "/dev", "--uid", user, "--gid", group]


def files_of_image(name: str, image: str) -> list[str]:
    """Options for a copy of the files of an image that `build` made."""
    root = FOLDER / "roots" / image
    if not root.exists():
        return []
    own = FOLDER / "running" / name
    shutil.copytree(root, own)
    (folder,) = (own / ".folder").read_text().split()
    tops = [path for path in own.iterdir() if path.is_dir()]
    return [*(word for path in tops for word in ("--bind", str(path), f"/{path.name}")), "--chdir", folder]


def build(options: dict[str, list[str]], rest: list[str]) -> int:
    """Follow the lines WORKDIR and COPY of a Dockerfile; `RUN false` fails."""
    (tag,), root, folder = options["--tag"], FOLDER / "roots" / options["--tag"][0], "/"
    for word, *values in (line.split() for line in (Path(rest[0]) / "Dockerfile").read_text().splitlines()):
        if word == "WORKDIR":
            folder = values[0]
            (root / folder[1:]).mkdir(parents=True, exist_ok=True)
        elif word == "COPY":
            shutil.copytree(Path(rest[0]) / values[0], root / values[1].strip("/"), dirs_exist_ok=True)
        elif (word, values) == ("RUN", ["false"]):
            return failed("process '/bin/sh -c false' did not complete successfully: exit code: 1")
    (root / ".folder").write_text(folder)
    with (FOLDER / "images").open("a") as images:
        images.write(tag + "\n")
    print(f"sha256:{tag}")
    return 0


def containers() -> dict[str, dict[str, object]]:
    return {path.name: json.loads(path.read_text()) for path in sorted((FOLDER / "containers").iterdir())}


def ps(options: dict[str, list[str]], rest: list[str]) -> int:
    label = options["--filter"][0].removeprefix("label=")
    for name, container in containers().items():
        labels = [str(each) for each in container["labels"]]
        if any(each == label or each.startswith(f"{label}=") for each in labels):
            print(name.replace("-", ""), ",".join([*labels, "maintainer=someone"]))
    return 0


def rm(options: dict[str, list[str]], rest: list[str]) -> int:
    code = 0
    for wanted in rest:
        names = [name for name in containers() if wanted in (name, name.replace("-", ""))]
        for name in names:
            end(int(str(containers()[name]["pid"])))
            (FOLDER / "containers" / name).unlink(missing_ok=True)
        code = code or (0 if names else failed(f"Error response from daemon: No such container: {wanted}"))
    return code


def end(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def image(options: dict[str, list[str]], rest: list[str]) -> int:
    known = rest[1] in (FOLDER / "images").read_text().split()
    return 0 if known else failed(f"Error response from daemon: No such image: {rest[1]}")


def pull(options: dict[str, list[str]], rest: list[str]) -> int:
    if "/" in rest[0]:
        return failed(f"Error response from daemon: pull access denied for {rest[0]}")
    with (FOLDER / "images").open("a") as images:
        images.write(rest[0] + "\n")
    print(rest[0])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:]))
