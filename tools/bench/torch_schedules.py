"""Schedules of contraflow.torch on one GPU whose SMs are shared out to the ranks, against their predictions.

    python3 tools/bench/torch_schedules.py CONTRAFLOW [--ranks N] [--microbatches N] [--schedules LIST] [--json FILE]
                                           [--keep DIR] [--small]

CONTRAFLOW is the program. Ranks are threads (`run_local`), each with a stream of a green context of its own SMs; messages
are copies. A stage is one MoE layer of `layer_times.py`. The first schedule runs with the costs of another GPU, and its own
trace gives the costs (`contraflow diff --update-costs`) by which every schedule is compiled and predicted. Prints a JSON
object a line: step and its spread in ms, prediction, efficiency (micro-batches x (F + B + W) over the step), and bytes at
the peak. `--small` runs tiny layers on the CPU, to try the program.
"""

import argparse
import contextlib
import ctypes
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

_root = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_root / "tests/python"), str(_root / "tools/bench")]

import torch  # noqa: E402
import torch_gpu  # noqa: E402
import layer_times  # noqa: E402

from contraflow.torch import PlanSchedule, run_local  # noqa: E402

SHAPE = layer_times.Shape(4096, 1, 4096, 32, 8, 128, 4096, experts=8, top_k=2)
SMALL = layer_times.Shape(32, 1, 32, 4, 4, 8, 32, experts=4, top_k=2)
WARM_STEPS, STEPS = 2, 3


class Resource(ctypes.Structure):
    """CUdevResource, version 1: 96 bytes before the number of SMs, 48 from there."""

    _fields_ = [("before", ctypes.c_ubyte * 96), ("sms", ctypes.c_uint), ("after", ctypes.c_ubyte * 44)]


def green_streams(count, sms_each):
    """Streams of disjoint green contexts, and the SMs of each."""
    driver = ctypes.CDLL("libcuda.so.1")

    def call(name, *arguments):
        code = getattr(driver, name)(*arguments)
        if code:
            raise RuntimeError(f"{name} gave {code}")
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    whole, parts, groups = Resource(), (Resource * count)(), ctypes.c_uint(count)
    call("cuDeviceGetDevResource", 0, ctypes.byref(whole), 1)
    call("cuDevSmResourceSplitByCount", parts, ctypes.byref(groups), ctypes.byref(whole), None, 0, sms_each)
    if groups.value < count:
        raise RuntimeError(f"the GPU gave {groups.value} groups of {sms_each} SMs, not {count}")
    streams = []
    for part in parts:
        description, context, stream = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        call("cuDevResourceGenerateDesc", ctypes.byref(description), ctypes.byref(part), 1)
        call("cuGreenCtxCreate", ctypes.byref(context), description, 0, 1)
        call("cuGreenCtxStreamCreate", ctypes.byref(stream), context, 1, 0)
        streams.append(torch.cuda.ExternalStream(stream.value))
    return streams, [part.sms for part in parts]


class Layer(torch.nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.halves = torch.nn.Sequential(*layer_times.halves_of(shape).values())

    def forward(self, x):
        return self.halves(x)


def loss_fn(output, target):
    return torch.nn.functional.mse_loss(output.float(), target.float())


def run(plan, shape, device, streams, trace, timing_every):
    """Milliseconds of each step and how often CUDA was asked for memory in it; writes the trace of the last one."""
    barrier = threading.Barrier(plan.ranks)

    def of_rank(links):
        on_stream = torch.cuda.stream(streams[links.rank]) if streams else contextlib.nullcontext()
        with on_stream:
            torch.manual_seed(links.rank)
            stages = {s: Layer(shape).to(device, torch.bfloat16) for s in plan.stages_of(links.rank)}
            schedule = PlanSchedule(plan, stages, loss_fn, links=links, timeout=120,
                                    timing_every=timing_every or WARM_STEPS + STEPS + 1)
            schedule.sync_parameters()
            values = torch.randn(plan.microbatches, 1, shape.sequence, shape.width, device=device, dtype=torch.bfloat16)
            x, y = (torch_gpu.rows_of(plan, links.rank, s, values) for s in (0, plan.stages - 1))
            times, asked = [], []
            for step in range(WARM_STEPS + STEPS + 1):
                wait(streams, links.rank)
                barrier.wait(120)
                asked.append(allocations(device))
                begin = time.perf_counter()
                schedule.step(*() if x is None else (x,), target=y)
                wait(streams, links.rank)
                barrier.wait(120)
                times.append((time.perf_counter() - begin) * 1e3)
                for module in stages.values():
                    module.zero_grad(set_to_none=False)
            schedule.trace(trace)
            return [round(t, 1) for t in times], [b - a for a, b in zip(asked, [*asked[1:], allocations(device)])]
    return run_local(plan.ranks, of_rank, device=device)[0]


def allocations(device):
    return torch.cuda.memory_stats(device).get("num_device_alloc", 0) if device.type == "cuda" else 0


def wait(streams, rank):
    if streams:
        streams[rank].synchronize()


def rates_alone(shape, streams):
    """ms of F + B + W of one layer, alone on the first rank's SMs, and on each rank's at once."""
    def of_stream(stream, found, index, barrier):
        with torch.cuda.stream(stream), torch.autograd.set_multithreading_enabled(False):
            layer = Layer(shape).to("cuda", torch.bfloat16)
            x = torch.randn(1, shape.sequence, shape.width, device="cuda", dtype=torch.bfloat16).requires_grad_()

            def once():
                layer(x).sum().backward()
            for _ in range(5):
                once()
            stream.synchronize()
            barrier.wait(60)
            begin = time.perf_counter()
            for _ in range(10):
                once()
            stream.synchronize()
            found[index] = (time.perf_counter() - begin) * 1e2
    made = []
    for used in (streams[:1], streams):
        found, barrier = [0.0] * len(used), threading.Barrier(len(used))
        threads = [threading.Thread(target=of_stream, args=(s, found, i, barrier)) for i, s in enumerate(used)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        made.append(round(statistics.mean(found), 3))
    return {"alone ms": made[0], "all at once ms": made[1]}


def contraflow(program, *arguments):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"contraflow {' '.join(map(str, arguments))}: {done.stderr.strip()}")
    return done.stdout


def alike(path):
    """Gives all stages of a cost file their mean, as all have the same layer."""
    with open(path) as file:
        costs = json.load(file)
    stages = costs.pop("stages")
    costs["stage"] = {key: round(statistics.mean(stage[key] for stage in stages), 3) for key in stages[0]}
    with open(path, "w") as file:
        json.dump(costs, file)
    return costs["stage"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("contraflow")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=16)
    parser.add_argument("--schedules", default="zb-1p,1f1b,dualpipe,zb-v,dualpipe-v")
    parser.add_argument("--timing-every", type=int, default=0, help="time each instruction in every so many steps (0: last)")
    parser.add_argument("--json", help="a file that gets each line, too")
    parser.add_argument("--keep", help="a folder for plans, traces and costs")
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    if not torch.cuda.is_available() and not arguments.small:
        print("SKIP: torch has no GPU")
        sys.exit(77)
    device = torch.device("cpu") if arguments.small else torch.device("cuda", 0)
    shape = SMALL if arguments.small else SHAPE

    def say(what, **values):
        line = json.dumps({"measured": what, **values})
        print(line, flush=True)
        if arguments.json:
            with open(arguments.json, "a") as file:
                file.write(line + "\n")

    with contextlib.ExitStack() as stack:
        folder = arguments.keep or stack.enter_context(tempfile.TemporaryDirectory())
        os.makedirs(folder, exist_ok=True)
        streams = None
        if device.type == "cuda":
            streams, sms = green_streams(arguments.ranks, 128 // arguments.ranks // 8 * 8)
            say("partitions", sms=sms)
            say("one layer, F + B + W", **rates_alone(shape, streams))
        costs = f"{folder}/costs.json"
        given = ["--f", "1", "--b", "1", "--w", "1"]
        schedules = arguments.schedules.split(",")
        for index, name in enumerate([schedules[0], *schedules]):
            plan, trace = f"{folder}/{name}-{index}.json", f"{folder}/{name}-{index}-trace.json"
            contraflow(arguments.contraflow, "compile", "--schedule", name, "--ranks", arguments.ranks,
                       "--microbatches", arguments.microbatches, *given, "-o", plan)
            if device.type == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            every, asked = run(torch_gpu.Plan(plan), shape, device, streams, trace, arguments.timing_every)
            times = every[WARM_STEPS:-1]
            peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
            if index == 0:
                contraflow(arguments.contraflow, "diff", plan, trace, "--update-costs", costs)
                stage = alike(costs)
                given = ["--costs", costs]
                say("one stage in a pipeline, us", **stage)
                continue
            predicted = json.loads(contraflow(arguments.contraflow, "simulate", plan, "--json"))["makespan"] / 1e3
            step = statistics.median(times)
            work = arguments.microbatches * sum(stage[key] for key in "fbw") / 1e3
            work *= torch_gpu.Plan(plan).stages / arguments.ranks
            say(name, step_ms=round(step, 2), spread=round(max(times) / min(times) - 1, 3),
                predicted_ms=round(predicted, 2), ratio=round(step / predicted, 3),
                efficiency=round(work / step, 3), efficiency_predicted=round(work / predicted, 3), peak_bytes=peak, steps_ms=every, allocations=asked)


if __name__ == "__main__":
    main()
