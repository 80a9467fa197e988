"""The processes of a run, one per device. Rank 0 calls functions on all ranks; the other ranks serve its calls."""

from __future__ import annotations

import io
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import count
from pathlib import Path
from threading import Thread
from types import FunctionType
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from agentrl.backends.torch.peers import Peers, SampleOutputs
from agentrl.config.rules.unused import wrong
from agentrl.errors import AgentRLError, ConfigError, Kind
from agentrl.registry import load_object, make_importable, user_file

STORE = "AGENTRL_RANK_STORE"
"""Environment variable with the path of a file through which ranks on one node find each other; unset on several nodes,
and under torchrun."""
SIGNS = "AGENTRL_RANK_SIGNS"
"""Environment variable with the path of this node's folder for the ranks' signs of life; unset under torchrun."""
BEAT_S = 1.0
"""Seconds between two signs of life of a rank."""
LOST_PEER_STATUS = 75
"""Exit status of a rank that ends because another rank has ended: EX_TEMPFAIL of sysexits.h."""
FOREVER = timedelta(days=365)
"""Timeout of a rank that waits for the next call. If another rank ends, a closed socket shows it sooner."""


class LostPeerError(AgentRLError):
    """Another rank has ended, so a call cannot be answered."""


class Ranks:
    """The process group of a run.

    Attributes:
        held: objects that stay on this rank between calls, by number.
        numbers: yields unused numbers for `held`.
        bucket: memory in which weights are collected for rank 0; see `shared_memory`.
        meshes: cached results of `mesh`, because each new mesh opens connections.
        thread: runs the calls of rank 0, one at a time.
        background: the group for the collective operations of `in_background`.
    """

    def __init__(self) -> None:
        _open_process_group()
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        local = int(os.environ.get("LOCAL_RANK", "0"))
        self.device = torch.device(f"cuda:{local}" if torch.cuda.is_available() else "cpu")
        self.numbers = count()
        self.held: dict[int, Any] = {}  # Any: objects of any class
        self.meshes: dict[tuple[str, int, bool], DeviceMesh] = {}
        self.bucket = torch.empty(0, dtype=torch.uint8)
        self._lock = threading.Lock()
        self._usable = True  # false during a call, and after a failed call
        self.control = dist.new_group(backend="gloo", timeout=FOREVER)
        self.background = dist.new_group(backend="gloo", timeout=FOREVER)
        self._nodes: list[Any] = [None] * self.size  # Any: as torch declares it
        dist.all_gather_object(self._nodes, os.environ.get("GROUP_RANK"), self.control)
        self._select()
        self.thread = ThreadPoolExecutor(1, "rank-0", self._select)
        self._background_thread = ThreadPoolExecutor(1, "background", self._select)

    def _select(self) -> None:
        if self.device.type == "cuda":  # NCCL and megatron-core use the current GPU of a thread
            torch.cuda.set_device(self.device)

    def is_near(self, rank: int) -> bool:
        """Whether a rank is on the node of rank 0."""
        return bool(self._nodes[rank] == self._nodes[0])

    def each(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:  # Any: any type
        """Call `function(ranks, *arguments[rank])` on all ranks at the same time; return the results in order of rank.

        Args:
            function: a function at the top level of a module, because it is pickled.

        Raises:
            AgentRLError: the call raised it on a rank, or a rank has ended. Other errors end the process of their rank.
        """
        calls = [_dumped((function, own)) for own in arguments]
        # an engine that reads weights may call this in inference mode
        with self._lock, _peers_watched(), torch.inference_mode(False):
            self._usable = False
            answers = self._all_answers(function, calls, arguments[0])
            self._usable = True
        for error, _ in answers:
            if error is not None:
                raise error
        return [value for _, value in answers]

    def _all_answers(self, function: Callable[..., Any], calls: list[bytes], own: tuple[Any, ...]) -> list[Any]:
        dist.scatter_object_list([None], [(sys.path, call) for call in calls], group=self.control)
        answers: list[Any] = [None] * self.size
        dist.gather_object(self._answer(function, own), answers, group=self.control)
        return answers

    def mesh(self, device: str, num_shards: int, *, named: bool) -> DeviceMesh:
        """Return a mesh of all ranks. If there are several copies of the weights, each row of the mesh has one copy.

        Args:
            device: type of the devices: cpu or cuda.
            num_shards: number of ranks that shard a copy.
            named: whether two dimensions get names. FSDP2 needs names; with names, peft assumes tensor parallelism.
        """
        if (device, num_shards, named) not in self.meshes:
            rows = num_shards < self.size
            shape = (self.size // num_shards, num_shards) if rows else (self.size,)
            names = ("copy", "shard") if rows and named else None
            self.meshes[device, num_shards, named] = init_device_mesh(device, shape, mesh_dim_names=names)
        return self.meshes[device, num_shards, named]

    def in_background(self, work: Callable[[], None]) -> Future[None]:
        """Run `work` in a background thread, in the order of the calls; the order must be the same on all ranks.

        On rank 0, the future raises errors of `work`. On other ranks, every error except AgentRLError ends the process.
        """

        def watched() -> None:
            try:
                with _peers_watched():
                    work()
            except Exception as error:
                if self.rank != 0 and not isinstance(error, AgentRLError):
                    _say_failed()
                    os._exit(1)
                raise

        return self._background_thread.submit(watched)

    def serve(self) -> None:
        """Serve the calls of rank 0 until it closes the group."""
        while True:
            given: list[Any] = [None]
            with _peers_watched():
                dist.scatter_object_list(given, None, group=self.control)
            if given[0] is None:
                return
            folders, call = given[0]
            for folder in folders:
                make_importable(Path(folder))
            function, own = pickle.loads(call)
            dist.gather_object(self._answer(function, own), None, group=self.control)

    def close(self) -> None:
        """End the service of the other ranks. A second call does nothing.

        After a call that failed on this rank, the other ranks end when this process ends.
        """
        if dist.is_initialized():
            if self._usable:
                self._background_thread.shutdown()
            with self._lock, suppress(RuntimeError):  # raised if another rank has ended
                if self.rank == 0 and self._usable:
                    dist.scatter_object_list([None], [None] * self.size, group=self.control)
                dist.destroy_process_group()
            self.thread.shutdown()
            _joined.clear()

    def _answer(self, function: Callable[..., Any], own: tuple[Any, ...]) -> tuple[AgentRLError | None, Any]:
        try:
            return None, function(self, *own)
        except AgentRLError as error:
            return error, None


@contextmanager
def _peers_watched() -> Iterator[None]:
    """Raise a LostPeerError if the connection to a rank is lost, after a wait in which the launcher can report it."""
    try:
        yield
    except RuntimeError as error:
        if "gloo" not in str(error) and "onnection" not in str(error):
            raise
        time.sleep(2 * BEAT_S)
        raise LostPeerError(f"another rank of this run ended ({str(error).splitlines()[0]})") from error


_joined: list[Ranks] = []  # global, because torch has one process group per process


def join() -> Ranks:
    """Join the ranks of this run; called once in each process, before models are loaded."""
    Thread(target=_beat, name="rank-beat", daemon=True).start()
    _joined.append(Ranks())
    return _joined[-1]


def joined() -> Ranks | None:
    """Return the ranks that this process has joined; None in a run of one process."""
    return _joined[-1] if _joined else None


def check_shared_folder(ranks: Ranks, folder: Path) -> None:
    """Check that every rank sees the run folder that rank 0 has created.

    Raises:
        ConfigError: a rank on another node does not see the folder.
    """
    seen = ranks.each(_name_if_missing, [(folder,)] * ranks.size)
    if missing := sorted({name for name in seen if name}):
        text = f"is not on {', '.join(missing)}: the folder of a run must be on a file system that all nodes mount"
        raise ConfigError(wrong("trainer.default_local_dir", text, Kind.NOT_FOUND, value=folder))


def _name_if_missing(_: Ranks, folder: Path) -> str:
    return "" if folder.is_dir() else socket.gethostname()


def serve() -> int:
    """Serve rank 0 until it ends; return the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        ranks = join()
        ranks.serve()
        ranks.close()
    except LostPeerError:  # rank 0 has ended
        return 0
    except Exception:  # the error of this rank ends the run
        _say_failed()
        return 1
    return 0


def _say_failed() -> None:
    print(f"agentrl: error: rank {os.environ['RANK']} failed:\n{traceback.format_exc()}", file=sys.stderr, end="")


def beat_file(rank: int, attempt: int) -> Path:
    """Return the file whose modification time is a rank's last sign of life, in a given attempt of the launcher."""
    return Path(os.environ[SIGNS]) / f"attempt-{attempt}-rank-{rank}"


def _beat() -> None:
    """Give signs of life, and end this process when its launcher is gone."""
    parent = os.getppid()
    file = beat_file(int(os.environ["RANK"]), _attempt()) if SIGNS in os.environ else None
    while os.getppid() == parent:
        if file is not None:
            file.touch()
        time.sleep(BEAT_S)
    os._exit(1)


def _attempt() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def group_backend() -> str:
    """Return torch's name of the backends of a process group: gloo, and with GPUs also NCCL."""
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"


def _open_process_group() -> None:
    if dist.is_initialized():
        return
    if STORE not in os.environ:
        dist.init_process_group(group_backend())
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this node
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = FileStore(f"{os.environ[STORE]}.{_attempt()}", size)
    dist.init_process_group(group_backend(), store=store, rank=rank, world_size=size)


class ProcessPeers(Peers):
    """Peers of a process in a run with several ranks."""

    def __init__(self, ranks: Ranks) -> None:
        self.group, self.size = ranks.control, ranks.size

    def most(self, number: int) -> int:
        """See `Peers.most`."""
        found = torch.tensor(int(number))
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self.group)
        return int(found)

    def gathered(self, outputs: SampleOutputs) -> SampleOutputs:
        """See `Peers.gathered`."""
        parts: list[Any] = [None] * dist.get_world_size(self.group)  # the group may have fewer than `size` processes
        dist.all_gather_object(parts, {n: {i: v.cpu() for i, v in o.items()} for n, o in outputs.items()}, self.group)
        device = next((value.device for of_sample in outputs.values() for value in of_sample.values()), None)
        found: SampleOutputs = {name: {} for name in outputs}
        for part in parts:
            for name, of_sample in found.items():  # the first stages of a pipeline have no outputs
                of_sample |= {index: value.to(device) for index, value in part.get(name, {}).items()}
        return found


class _Pickler(pickle.Pickler):
    """Pickles functions and classes of a user's file by the path of the file."""

    def reducer_override(self, item: Any) -> Any:  # Any: as pickle declares it
        if isinstance(item, FunctionType | type) and (file := user_file(item.__module__)):
            return load_object, (f"{file}:{item.__qualname__}",)
        return NotImplemented


def _dumped(item: object) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(item)
    return buffer.getvalue()
