"""An emulated GPU: streams and events with vector clocks, the memory of torch operations, and NCCL between ranks
that are threads. Operations run on the CPU when they are issued; the emulator checks that events order them.

A data race is a write and another use of a tensor on two streams that no event orders. A memory race is a tensor
that the host frees while a use on another stream is not ordered before the next operation on the stream that it was
allocated on: the caching allocator gives its memory to that operation.
"""

import contextlib
import threading
import unittest.mock

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from contraflow.torch import LocalLinks, backward, lanes
from contraflow.torch.local import Posted

WITHOUT_MEMORY = ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided")


class Stream:
    def __init__(self, machine, name):
        self.machine, self.name, self.clock = machine, name, {}

    def tick(self):
        self.clock[self] = self.clock.get(self, 0) + 1
        return self.clock[self]

    def join(self, clock):
        for stream, tick in clock.items():
            self.clock[stream] = max(tick, self.clock.get(stream, 0))

    def wait_event(self, event):
        with self.machine.lock:
            self.machine.find_freed()
            self.join(event.clock)

    def synchronize(self):
        pass

    def __repr__(self):
        return self.name


class Event:
    """Waiting for one that was never recorded does nothing, as on a GPU."""

    def __init__(self, machine, timing):
        self.machine, self.timing, self.clock, self.done, self.at = machine, timing, {}, True, None

    def record(self, stream):
        with self.machine.lock:
            self.machine.find_freed()
            stream.tick()
            self.clock = dict(stream.clock)
            self.done, self.at = threading.current_thread().name not in self.machine.stopped, self.machine.now()

    def query(self):
        return self.done

    def synchronize(self):
        pass

    def elapsed_time(self, other):
        """In ms."""
        assert self.timing and other.timing and self.at is not None and other.at is not None
        return (other.at - self.at) * 1e3


class Memory:
    """Uses of a tensor: who wrote it last, and who has used it since; `stream` is None where it was not allocated on one."""

    def __init__(self, storage, stream, made):
        self.alive, self.stream, self.made = StorageWeakRef(storage), stream, made
        self.write, self.uses, self.recorded = None, {}, set()


class Machine:
    """`api` is what torch.cuda is; `races` what was found."""

    def __init__(self):
        self.lock = threading.RLock()
        self.local = threading.local()
        self.memory, self.freed, self.races = {}, {}, []
        self.operations = 0
        self.ran = {}  # by name of an operation of torch: the streams it ran on
        self.stopped = set()  # names of threads whose events are not done any more
        self.time = 0.0
        self.api = self

    # members of torch.cuda

    def Stream(self, device=None, priority=0):
        return Stream(self, f"{threading.current_thread().name} stream{' of high priority' if priority else ''}")

    def Event(self, enable_timing=False):
        return Event(self, enable_timing)

    def current_stream(self, device=None):
        if not hasattr(self.local, "stream"):
            self.local.stream = Stream(self, threading.current_thread().name)
        return self.local.stream

    @contextlib.contextmanager
    def stream(self, stream):
        before = self.current_stream()
        self.local.stream = stream
        try:
            yield
        finally:
            self.local.stream = before

    def device(self, device):
        return contextlib.nullcontext()

    # operations that it sees

    def now(self):
        self.time += 1e-6
        return self.time

    def label(self):
        return getattr(self.local, "label", "between operations")

    @contextlib.contextmanager
    def unseen(self):
        """Work of the emulation itself."""
        before, self.local.unseen = getattr(self.local, "unseen", False), True
        try:
            yield
        finally:
            self.local.unseen = before

    def find_freed(self):
        for key, memory in list(self.memory.items()):
            if memory.alive.expired():
                del self.memory[key]
                if memory.stream is not None:
                    self.freed.setdefault(memory.stream, []).append((memory, self.label()))

    def of(self, tensor, made=None):
        storage = tensor.untyped_storage()
        memory = self.memory.get(storage._cdata)
        if memory is None:
            memory = self.memory[storage._cdata] = Memory(storage, made and self.current_stream(), made)
        return memory

    def begin(self, stream, name):
        """Before what an operation does: memory that was freed may be what it gets."""
        self.operations += 1
        tick = stream.tick()
        for memory, label in self.freed.pop(stream, ()):
            for other, (at, use) in memory.uses.items():
                if other is not stream and other not in memory.recorded and stream.clock.get(other, 0) < at:
                    self.races.append(f"memory of {memory.made}, freed at {label}: {use} on {other} may not be over "
                                      f"at {name} on {stream}")
        return tick

    def use(self, memory, stream, tick, name, writes):
        others = memory.uses.items() if writes else [memory.write] if memory.write else ()
        for other, (at, use) in others:
            if other is not stream and stream.clock.get(other, 0) < at:
                self.races.append(f"{memory.made or 'a tensor'}: {name} on {stream} {'writes' if writes else 'reads'} "
                                  f"it, and {use} on {other} may not be over")
        if writes:
            memory.write = stream, (tick, name)
            memory.uses = {}
        memory.uses[stream] = tick, name

    def operation(self, function, arguments, keywords, result):
        if getattr(self.local, "unseen", False):
            return
        schema, stream = function._schema, self.current_stream()
        read, written = [], []
        for at, of in enumerate(schema.arguments):
            value = arguments[at] if at < len(arguments) else keywords.get(of.name)
            tensors = [x for x in tree_flatten(value)[0] if torch.is_tensor(x)]
            (written if of.alias_info is not None and of.alias_info.is_write else read).extend(tensors)
        out = [x for x in tree_flatten(result)[0] if torch.is_tensor(x)]
        if not written and any(of.alias_info is not None for of in schema.returns):
            return  # a view
        name = f"{self.label()} ({schema.name.replace('aten::', '')})"
        with self.lock:
            self.ran.setdefault(schema.name.replace("aten::", ""), set()).add(stream.name)
            self.find_freed()
            tick = self.begin(stream, name)
            for x in read:
                self.use(self.of(x), stream, tick, name, False)
            for x in written:
                self.use(self.of(x), stream, tick, name, True)
            for x in out:
                new = x.untyped_storage()._cdata not in self.memory
                memory = self.of(x, f"what {name} made on {stream}")
                if new and schema.name.split("::")[1] not in WITHOUT_MEMORY:
                    self.use(memory, stream, tick, name, True)

    def touch(self, tensor, stream, name, writes):
        """An operation that torch does not see: NCCL's."""
        with self.lock:
            self.find_freed()
            self.use(self.of(tensor), stream, self.begin(stream, name), name, writes)

    # autograd's engine

    def tag(self, output):
        """Notes with the nodes of a graph which stream their forward ran on."""
        stack = [output.grad_fn]
        while stack:
            node = stack.pop()
            if node is None or "stream" in node.metadata or type(node).__name__ == "AccumulateGrad":
                continue
            node.metadata["stream"] = self.current_stream()
            stack.extend(child for child, _ in node.next_functions)

    def engine(self, function):
        """Runs a backward as the engine does: each node on the stream of its forward, after the caller's; the caller's
        goes on after it."""
        def run(roots, *arguments, **keywords):
            every = roots if isinstance(roots, (tuple, list)) else [roots]
            nodes = [root.node if hasattr(root, "node") else root.grad_fn for root in every]
            streams = {node.metadata.get("stream") for node in nodes}
            caller = self.current_stream()
            assert len(streams) == 1, f"{self.label()}: a backward of nodes of several streams"
            stream = streams.pop() or caller
            with self.lock:
                self.find_freed()
                stream.join(caller.clock)
            with self.stream(stream):
                result = function(roots, *arguments, **keywords)
            with self.lock:
                self.find_freed()
                caller.join(stream.clock)
            return result
        return run

    @contextlib.contextmanager
    def installed(self):
        """contraflow.torch takes this for its GPU."""
        def root_of(output):
            self.tag(output)
            return backward.root_of(output)
        patch = unittest.mock.patch
        with patch.object(lanes, "streams_of", lambda device: self), \
                patch("contraflow.torch.island.root_of", root_of), patch("contraflow.torch.stage.root_of", root_of), \
                patch.object(backward, "_engine", self.engine(backward._engine)), \
                patch.object(torch.Tensor, "record_stream", lambda x, stream: self.of(x).recorded.add(stream)):
            yield

    def mode(self):
        return _Mode(self)

    def links(self, job, rank):
        return NcclLinks(self, job, rank)


class _Mode(TorchDispatchMode):
    def __init__(self, machine):
        super().__init__()
        self.machine = machine

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        self.machine.operation(function, arguments, keywords or {}, result)
        return result


class NcclLinks(LocalLinks):
    """Groups with a stream of their own, as NCCL has them: it waits for the current stream when an operation is
    posted, and wait() makes the current stream wait for it."""

    def __init__(self, machine, job, rank):
        super().__init__(job, rank)
        self.machine = machine

    def edge(self, source, target):
        group, peer = super().edge(source, target)
        return _nccl(self, group), peer

    def headers(self, source, target):
        group, peer = super().headers(source, target)
        name = "headers", source, target
        group = self._groups.setdefault(name, type(group)(self._job, name))
        return _Unseen(self.machine, group), peer

    def sum_group(self, holders, spread=False):
        group = super().sum_group(holders)
        return group and _nccl(self, group)

    def broadcast(self, tensor, group):
        with self.machine.unseen():
            super().broadcast(tensor, group.group)


def _nccl(links, group):
    return links._groups.setdefault(("nccl", id(group)), _Nccl(links.machine, group))


class _Unseen:
    """A group of gloo: messages of the host."""

    def __init__(self, machine, group):
        self.machine, self.group = machine, group

    def _posted(self, post, tensors):
        with self.machine.unseen():
            work = post(tensors, 0, 0)

        def finish():
            with self.machine.unseen():
                work.wait()
        return Posted(finish)

    def send(self, tensors, _peer, _tag):
        return self._posted(self.group.send, tensors)

    def recv(self, tensors, _peer, _tag):
        return self._posted(self.group.recv, tensors)


class _Nccl:
    def __init__(self, machine, group):
        self.machine, self.group = machine, group
        self.stream = Stream(machine, f"{threading.current_thread().name} NCCL")
        self.posted, self.taken = 0, 0

    def send(self, tensors, peer, tag):
        return self._post("send", tensors[0], lambda: self.group.send(tensors, peer, tag), [False], peer)

    def recv(self, tensors, peer, tag):
        return self._post("recv", tensors[0], lambda: self.group.recv(tensors, peer, tag), [True], peer)

    def allreduce(self, tensors):
        return self._post("all-reduce", tensors[0], lambda: self.group.allreduce(tensors), [False, True], None)

    def _post(self, name, tensor, post, uses, peer):
        machine, stream = self.machine, self.stream
        assert tuple(tensor.shape) != (64,) or tensor.dtype != torch.int64, "a header over NCCL is waited for by the host"
        self.posted += 1
        number, name = self.posted, f"{machine.label()} ({name} of NCCL)"
        with machine.lock:
            stream.join(machine.current_stream().clock)
        for writes in uses:
            machine.touch(tensor, stream, name, writes)
        with machine.lock:
            clock = dict(stream.clock)
        job, me = self.group._job, threading.current_thread().name
        group = getattr(self.group, "_pair", None) or self.group._holders
        readers = [] if peer is not None and uses[0] else [f"rank {peer}"] if peer is not None else [
            f"rank {holder}" for holder in group]
        for reader in readers:
            job.put(("clock", group, number, me, reader), clock)
        with machine.unseen():
            work = post()
        if peer is not None:
            sources = [f"rank {peer}"] if uses[0] else []
        else:
            sources = [f"rank {holder}" for holder in group]

        def finish():
            with machine.unseen():
                work.wait()
            clocks = [job.take(("clock", group, number, source, me)) for source in sources]
            with machine.lock:
                machine.find_freed()
                for other in (clock, *clocks):
                    machine.current_stream().join(other)
        return Posted(finish)
