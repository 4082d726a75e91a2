"""A simulated GPU: NumPy arrays, and a clock advanced by launches; the part of CuPy that `timing` and `data` use."""

import types

import numpy as np

LATENCY = 5.0  # microseconds that the host needs for a launch outside a graph


class Clock:
    """Microseconds of GPU time, the launches so far, and the graph that is being captured."""

    def __init__(self):
        self.now = 0.0
        self.capture = None
        self.launched = []
        self.replays = 0

    def launch(self, name, us, work=lambda: None):
        if self.capture is not None:
            self.capture.append((name, us, work))
            return
        self.now += us + LATENCY
        self.launched.append(name)
        work()

    def kernel(self, name, us, work=lambda: None):
        """A callable that launches."""
        return lambda: self.launch(name, us() if callable(us) else us, work)


class Graph:
    def __init__(self, clock, nodes):
        self.clock, self.nodes = clock, nodes

    def launch(self, stream):
        self.clock.replays += 1
        for name, us, work in self.nodes:
            self.clock.now += us
            self.clock.launched.append(name)
            work()


class Stream:
    def __init__(self, clock):
        self.clock, self.ptr = clock, 7
        self.entered = 0

    def __enter__(self):
        self.entered += 1
        return self

    def __exit__(self, *_):
        self.entered -= 1

    def begin_capture(self):
        assert self.clock.capture is None and self.entered
        self.clock.capture = []

    def end_capture(self):
        if self.clock.capture is None:
            raise RuntimeError("nothing is captured")
        nodes, self.clock.capture = self.clock.capture, None
        return Graph(self.clock, nodes)

    def synchronize(self):
        if self.clock.capture is not None:
            raise RuntimeError("operation not permitted when stream is capturing")


class Event:
    def __init__(self, clock):
        self.clock = clock

    def record(self, stream):
        self.at = self.clock.now

    def synchronize(self):
        pass


class Buffer:
    def __init__(self, clock):
        self.clock = clock

    def memset_async(self, value, size, stream):
        assert size >= 4 * 60_000_000
        self.clock.launch("flush", 60.0)


def stand_in(clock):
    """A module that replaces `cupy`."""
    device = types.SimpleNamespace(id=0, synchronize=lambda: None, attributes={"L2CacheSize": 60_000_000})
    cuda = types.SimpleNamespace(
        Device=lambda: device,
        Stream=lambda non_blocking: Stream(clock),
        Event=lambda: Event(clock),
        get_elapsed_time=lambda start, stop: (stop.at - start.at) / 1000,
        runtime=types.SimpleNamespace(driverGetVersion=lambda: 13000),
    )

    def empty(shape, dtype):
        if dtype == np.uint8:
            return types.SimpleNamespace(data=Buffer(clock))
        return np.empty(shape, dtype)

    names = ("abs", "asarray", "ascontiguousarray", "float32", "float64", "int64", "lib", "matmul", "uint8", "uint32")
    module = types.ModuleType("cupy")
    vars(module).update(cuda=cuda, empty=empty, asnumpy=np.asarray, **{name: getattr(np, name) for name in names})
    return module
